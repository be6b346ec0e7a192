"""Runs the schedule of a trace again, step by step, on another backend, graph mode, type or thread
count, and compares the tokens.

Where a token differs, the traced one is written in its place: every later step runs what the traced
one ran, and each difference stands for itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.config import RunConfig, load_run_config
from runtime.data.step import RunnerOutput
from runtime.errors import ConfigError
from runtime.front.api import Runtime
from runtime.front.build import Parts
from runtime.observe.trace_lines import StepLine, step_of
from runtime.observe.trace_reader import Trace
from runtime.runner import ModelRunner

_SAME_MODEL = (
    "architecture",
    "vocab_size",
    "num_layers",
    "hidden_size",
    "num_kv_heads",
    "head_dim",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A token that came out otherwise."""

    step: int
    request_id: str
    output_index: int
    """Of the token in its answer, from 0."""
    traced: int
    replayed: int
    margin: float | None
    """Logit of the replayed token over that of the traced one, in the replay: small where the two
    were all but equal; None where a logit is not finite."""
    kind: str
    """How the step ran here."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found."""

    num_steps: int
    num_tokens: int
    """Compared."""
    differences: tuple[Difference, ...]
    traced_s: float
    """Launch and collect of all steps, in the trace."""
    replayed_s: float
    stopped: str = ""
    """Why it ended before the trace did."""


def replay_config(trace: Trace, sets: Sequence[str], overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration of a trace, with changes; its pool and lengths stay.

    Args:
        sets: `KEY=VALUE`, as `--set` takes them.
        overrides: dotted key -> value; they win.

    Raises:
        ConfigError: a change that cannot be, a trace that cannot be run again.
    """
    about = trace.header.about
    try:
        fixed = {
            "cache.block_size": about["block_size"],
            "cache.num_blocks": about["num_blocks"],
            "cache.memory": "auto",
            "model.max_model_len": about["max_model_len"],
            "observe.trace": None,
        }
        sections = dict(about["config"])
        sampling = sections.pop("sampling", {})
        values = {
            f"{s}.{key}": value for s, keys in sections.items() for key, value in keys.items()
        }
    except (KeyError, TypeError, AttributeError):
        raise ConfigError("the header of the trace does not say what ran") from None
    given = {text.partition("=")[0] for text in sets}
    for key in fixed:
        if key in given or key in overrides:
            raise ConfigError(f"--set {key}: is the trace's own in a replay")
    kept = {key: value for key, value in values.items() if key not in given}
    merged = {**kept, **fixed, **overrides, "sampling": sampling}
    return load_run_config(None, sets, env={}, overrides=merged)[0]


def check_replayable(trace: Trace) -> None:
    """Refuse a trace that lacks what a replay needs.

    Raises:
        ConfigError: its beginning was dropped, or it has logits processors.
    """
    if not trace.is_first:
        raise ConfigError(
            "the beginning of the trace was dropped by rotation; raise observe.trace_files or "
            "observe.trace_max_bytes"
        )
    for line in trace.steps:
        for new in line.new:
            if new.num_logits_processors:
                raise ConfigError(f"{new.request_id} has logits processors, which no trace holds")


def check_model(trace: Trace, runtime: Runtime) -> None:
    """Refuse a trace of another model; weights are not compared.

    Raises:
        ConfigError: naming the sizes that differ.
    """
    traced = trace.header.about.get("model", {})
    here = {name: getattr(runtime.spec, name) for name in _SAME_MODEL}
    wrong = [
        f"{name} {traced.get(name)}, here {value}"
        for name, value in here.items()
        if traced.get(name) != value
    ]
    if wrong:
        raise ConfigError(f"the trace is of another model: {'; '.join(wrong)}")


def replay(
    runtime: Runtime,
    steps: Sequence[StepLine],
    on_step: Callable[[int], None] = lambda number: None,
) -> Replayed:
    """Run the steps on a fresh runtime.

    Args:
        on_step: told how many steps have been run.

    Raises:
        StepgraphError: a step that cannot be run here.
    """
    run = _Replay(runtime.parts)
    found: list[Difference] = []
    count, stopped = 0, ""
    for line in steps:
        if line.error:
            stopped = f"step {line.step} failed in the trace: {line.error}"
            break
        found += run.step(line)
        count += 1
        on_step(count)
    return Replayed(count, run.num_tokens, tuple(found), run.traced_s, run.replayed_s, stopped)


class _Replay:
    def __init__(self, parts: Parts) -> None:
        self._runner: ModelRunner = parts.runner
        self._threads = parts.threads
        self._logits: Tensor | None = None
        self._prompt_lens: dict[str, int] = {}
        self._fed_wrong: set[str] = set()
        """Requests whose next token is void, since its step was launched with another one before
        it."""
        self.num_tokens = 0
        self.traced_s = self.replayed_s = 0.0
        launch = self._runner.sampler.launch

        def keep_logits(logits: Tensor, *args: Any) -> Any:
            self._logits = logits
            return launch(logits, *args)

        self._runner.sampler.launch = keep_logits  # type: ignore[method-assign, assignment]

    def step(self, line: StepLine) -> list[Difference]:
        """Run one step; the tokens that differ."""
        so = replace(step_of(line), feeds=None)  # every token is on the host here
        self._prompt_lens |= {new.request_id: new.num_prompt_tokens for new in line.new}
        started_s = time.perf_counter()
        with self._threads:
            ro = self._runner.execute(so)
        self.replayed_s += time.perf_counter() - started_s
        self.traced_s += line.times.launch_s + line.times.collect_s
        rows = so.rows[so.samples]
        positions = (so.num_computed_tokens + so.num_scheduled_tokens)[so.samples]
        traced = np.array(line.tokens, np.int32)
        self._runner.states.write_tokens(rows, positions, traced)
        names = [name for name, s in zip(line.request_ids, line.samples, strict=True) if s]
        skipped = self._skipped(line, names) | set(ro.errors)
        self.num_tokens += len(names) - len(skipped)
        return [
            self._difference(line.step, ro, names[i], int(positions[i]), i, int(traced[i]))
            for i in np.flatnonzero(ro.token_ids != traced).tolist()
            if i not in skipped
        ]

    def _skipped(self, line: StepLine, names: Sequence[str]) -> set[int]:
        """Indices of tokens that say nothing."""
        void = {i for i, name in enumerate(names) if name in self._fed_wrong}
        self._fed_wrong = {names[i] for i in line.late}
        return void | set(line.row_errors)

    def _difference(
        self, step: int, ro: RunnerOutput, name: str, position: int, index: int, traced: int
    ) -> Difference:
        replayed = int(ro.token_ids[index])
        margin = self._margin(index, traced, replayed)
        at = position - self._prompt_lens[name]
        return Difference(step, name, at, traced, replayed, margin, ro.shape.kind)

    def _margin(self, index: int, traced: int, replayed: int) -> float | None:
        assert self._logits is not None
        with torch.inference_mode():
            row = self._logits[index].float()
            margin = float(row[replayed] - row[traced])
        return margin if math.isfinite(margin) else None
