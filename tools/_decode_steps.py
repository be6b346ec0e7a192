"""Decode steps over a cache that no prefill has written, timed whole and by kernel."""

from __future__ import annotations

import inspect
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from attention_backends import NUM_RESERVED_BLOCKS, NativeKernel, launch
from runtime.config import RuntimeConfig, blocks_for
from runtime.data.params import SamplingParams
from runtime.data.step import NewRow, SchedulerOutput
from runtime.models import LoadedModel
from runtime.runner import ModelRunner, choose_backends
from tools._steps import Part, run_eagerly, step_of

PARTS = ("linear", "attention", "rows", "head", "host")
NEXT_TOKENS = 2
"""The one that a step runs, and the one that it samples."""
LEAST_REPEATS, MOST_REPEATS, ENOUGH_S = 3, 15, 1.0


class Case(NamedTuple):
    threads: int
    batch: int
    context: int


class Found(NamedTuple):
    """Milliseconds of a step."""

    step: float
    kind: str
    """of graph that `step` was replayed from, or eager"""
    eager: float
    parts: dict[str, float]


class UnseenLaunchError(RuntimeError):
    """A step launched kernels that were not timed, so that their time would be the host's."""


class LaunchCount(TorchFunctionMode):
    """Counts native kernels by name, from wherever they are launched."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is launch:
            self.kernels[args[0].name] += 1
        elif isinstance(func, FunctionType) and not func.__module__.startswith("torch"):
            with self:  # what it calls; itself unwrapped, or it would come back here
                return inspect.unwrap(func)(*args, **kwargs)
        return func(*args, **kwargs)


class KernelTimes:
    """Seconds of native kernels by part, while a step runs eagerly.

    It takes the place of `launch` where that was imported: a torch function mode would see every
    launch, but slows each torch op, which would count as the host's.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._is_head = False
        self.kernels: Counter[str] = Counter()
        self.seconds = dict.fromkeys(PARTS[:-1], 0.0)

    def launch(self, kernel: NativeKernel, *args: Any) -> None:
        begin = time.perf_counter()
        launch(kernel, *args)
        self.seconds[self._part_of(kernel.name)] += time.perf_counter() - begin
        self.kernels[kernel.name] += 1

    def check(self, launched: Counter[str]) -> None:
        """
        Args:
            launched: kernels of the same step by `LaunchCount`.

        Raises:
            UnseenLaunchError: not all of them were timed, or a part had none.
        """
        if unseen := launched - self.kernels:
            raise UnseenLaunchError(f"kernels were launched but not timed: {dict(unseen)}")
        if silent := [part for part, seconds in self.seconds.items() if not seconds]:
            raise UnseenLaunchError(
                f"no native kernel was launched for {', '.join(silent)}: on this CPU, or for this "
                "model, torch does their work, which is not told from the host's"
            )

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
            with LaunchCount() as count:
                self.runner.execute(so)
            for _ in repeats():
                times = KernelTimes(self.runner)
                with times.watching():
                    begin = time.perf_counter()
                    self.runner.execute(so)
                    totals.append((time.perf_counter() - begin) * 1e3)
                times.check(count.kernels)
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
        self.runner.execute(step_of([], [], new=new, freed=freed))
        return step_of(self._held, [Part(context, 1)] * batch)


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
