"""Decode steps over a cache that no prefill has written, timed whole and by kernel."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from attention_backends import NUM_RESERVED_BLOCKS, NativeKernel, launch
from graphs import GraphKey, Kind
from runtime.config import RuntimeConfig, blocks_for
from runtime.models import LoadedModel
from runtime.params import SamplingParams
from runtime.runner import ModelRunner, choose_backends
from runtime.step import NewRow, SchedulerOutput

PARTS = ("linear", "attention", "rows", "head", "host")
NEXT_TOKENS = 2
"""The one that a step runs, and the one that it samples."""
LEAST_REPEATS, MOST_REPEATS, ENOUGH_S = 3, 15, 1.0


class Found(NamedTuple):
    """Milliseconds of a step."""

    step: float
    kind: str
    """of graph that `step` was replayed from, or eager"""
    eager: float
    parts: dict[str, float]


class KernelTimes:
    """Seconds of native kernels by part, while a step runs eagerly."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._is_head = False
        self.seconds = dict.fromkeys(PARTS[:-1], 0.0)

    def launch(self, kernel: NativeKernel, *args: Any) -> None:
        begin = time.perf_counter()
        launch(kernel, *args)
        self.seconds[self._part_of(kernel.name)] += time.perf_counter() - begin

    def _part_of(self, kernel: str) -> str:
        if self._is_head:
            return "head"
        if kernel.startswith(("linear", "unpack")):
            return "linear"
        return "attention" if "attention" in kernel else "rows"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every launch goes through here; all after the forward are the head's."""
        users = [m for m in sys.modules.values() if getattr(m, "launch", None) is launch]
        model = self._runner._model
        compute_logits = model.compute_logits

        def head(hidden: torch.Tensor) -> torch.Tensor:
            self._is_head = True
            return compute_logits(hidden)

        for user in users:
            if user is not sys.modules[__name__]:
                user.launch = self.launch  # type: ignore[attr-defined]
        model.compute_logits = head  # type: ignore[method-assign]
        try:
            yield
        finally:
            del model.compute_logits
            for user in users:
                user.launch = launch  # type: ignore[attr-defined]


class Bench:
    """A runner with its KV pool full of random numbers, for one number of threads."""

    def __init__(self, config: RuntimeConfig, loaded: LoadedModel, num_blocks: int) -> None:
        choice = choose_backends(config.attention, loaded.attention_shapes, None, loaded.device)
        self._block_size, self._num_blocks = choice.block_size, num_blocks
        self._vocab_size = loaded.spec.vocab_size
        self._rng = np.random.default_rng(0)
        self._held: list[int] = []
        self.runner = ModelRunner(
            config,
            loaded,
            choice.backend,
            device=loaded.device,
            max_model_len=int(config.model.max_model_len),
            block_size=choice.block_size,
            num_blocks=num_blocks,
        )
        for kv in self.runner.kv:
            for tensor in kv:
                fill(tensor[NUM_RESERVED_BLOCKS:])

    def measure(self, batch: int, context: int) -> Found:
        so = self._enter(batch, context)
        eager, parts = self._eager_steps(so)
        kind = self.runner.execute(so).shape.kind  # records it
        steps = []
        for _ in repeats():
            begin = time.perf_counter()
            self.runner.execute(so)
            steps.append((time.perf_counter() - begin) * 1e3)
        return Found(median(steps), kind, eager, parts)

    def _eager_steps(self, so: SchedulerOutput) -> tuple[float, dict[str, float]]:
        """Medians: of the step, and of its parts."""
        totals, by_part = [], []
        with run_eagerly(self.runner):
            self.runner.execute(so)
            for _ in repeats():
                times = KernelTimes(self.runner)
                with times.watching():
                    begin = time.perf_counter()
                    self.runner.execute(so)
                    totals.append((time.perf_counter() - begin) * 1e3)
                by_part.append({part: s * 1e3 for part, s in times.seconds.items()})
        parts = {part: median(one[part] for one in by_part) for part in PARTS[:-1]}
        parts["host"] = max(0.0, median(totals) - sum(parts.values()))
        return median(totals), parts

    def _enter(self, batch: int, context: int) -> SchedulerOutput:
        """Put requests into the rows, with blocks from all over the pool; their next step."""
        each = blocks_for(context + NEXT_TOKENS, self._block_size)
        blocks = NUM_RESERVED_BLOCKS + self._rng.permutation(self._num_blocks)[: batch * each]
        tokens = self._rng.integers(3, self._vocab_size, (batch, context + 1))
        params = SamplingParams(temperature=0.0)
        new = tuple(
            NewRow(row, f"r{row}", tokens[row].tolist(), context, 0, mine.tolist(), params, ())
            for row, mine in enumerate(blocks.reshape(batch, each))
        )
        freed, self._held = tuple(self._held), list(range(batch))
        self.runner.execute(step_of(0, 0, new_rows=new, freed_rows=freed))
        return step_of(batch, context)


def step_of(batch: int, context: int, **changes: Any) -> SchedulerOutput:
    """A decode step of rows 0 to batch - 1."""
    rows = np.arange(batch, dtype=np.int32)
    none: dict[str, Any] = {"new_rows": (), "freed_rows": (), "new_block_ids": ()}
    return SchedulerOutput(
        step_id=0,
        rows=rows,
        num_scheduled_tokens=np.ones_like(rows),
        num_computed_tokens=np.full_like(rows, context),
        samples=np.ones(batch, bool),
        **{**none, **changes},
    )


def fill(tensor: torch.Tensor, template_blocks: int = 64) -> None:
    """Random numbers, the same every `template_blocks` blocks: drawing them all takes minutes."""
    template = torch.empty_like(tensor[:template_blocks]).normal_()
    for start in range(0, len(tensor), template_blocks):
        part = tensor[start : start + template_blocks]
        part.copy_(template[: len(part)])


def repeats() -> Iterator[int]:
    """As many as are worth their time."""
    begin = time.perf_counter()
    for number in range(MOST_REPEATS):
        if number >= LEAST_REPEATS and time.perf_counter() - begin > ENOUGH_S:
            return
        yield number


@contextmanager
def run_eagerly(runner: ModelRunner) -> Iterator[None]:
    def dispatch(num_tokens: int, num_reqs: int, *_: int) -> GraphKey:
        return GraphKey(Kind.EAGER, num_tokens, num_reqs)

    runner.graphs.dispatch = dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        del runner.graphs.dispatch
