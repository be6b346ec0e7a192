"""How long a step takes: by the host's clock, by the device's, and until all is launched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from runtime.data.step import NewRow, SchedulerOutput
from runtime.models import LoadedModel
from runtime.runner import ModelRunner
from tools._gpu_check.batches import Pool, new_row, random_tokens
from tools._gpu_check.clock import Mark, synchronize
from tools._gpu_check.report import Deadline
from tools._gpu_check.scale import Scale
from tools._steps import Part, run_eagerly, step_of

WARM_UPS = 3
LEAST_REPEATS = 3


class Times(NamedTuple):
    """Medians over the repeats, milliseconds."""

    step: float
    """of `execute`, by the host's clock: nothing overlaps"""
    device: float
    """from the forward's first launch to the sampler's last, by the device's clock"""
    host: float
    """until everything was launched"""
    kind: str
    """of graph, or eager"""


class Bench:
    """One runner and the batches that it is timed with."""

    def __init__(self, runner: ModelRunner, loaded: LoadedModel, scale: Scale, pool: Pool) -> None:
        self.runner, self.spec, self.scale = runner, loaded.spec, scale
        self._pool = pool
        self._rng = np.random.default_rng(0)
        self._held: list[int] = []

    def enter(self, parts: Sequence[Part]) -> SchedulerOutput:
        """Fill the rows with requests of these sizes, with random tokens over random K and V."""
        freed, self._held = self._held, list(range(len(parts)))
        rows = [self._row(row, part) for row, part in enumerate(parts)]
        self.runner._apply(step_of([], [], new=rows, freed=freed))
        return step_of(self._held, parts)

    def _row(self, row: int, part: Part) -> NewRow:
        known = part.num_computed + part.num_scheduled
        tokens = random_tokens(self._rng, known, self.spec.vocab_size)
        return new_row(row, tokens, self._pool.take(known + 1))

    def time(self, parts: Sequence[Part], deadline: Deadline, *, eager: bool) -> Times:
        """Run the same step again and again."""
        so = self.enter(parts)
        device = self.scale.device
        steps, devices, hosts = [], [], []
        with run_eagerly(self.runner) if eager else nullcontext():
            for repeat in range(WARM_UPS + self.scale.repeats):
                if repeat >= WARM_UPS + LEAST_REPEATS and deadline.is_over:
                    break
                synchronize(device)
                with StepMarks(self.runner, device) as marks:
                    started = time.perf_counter()
                    ro = self.runner.execute(so)
                    ended = time.perf_counter()
                if repeat >= WARM_UPS:
                    steps.append((ended - started) * 1e3)
                    hosts.append((marks.launched_at - started) * 1e3)
                    devices.append(marks.busy_ms()[0])
        return Times(median(steps), median(devices), median(hosts), ro.shape.kind)


class StepMarks:
    """Marks where each step's forward begins, after its inputs were copied, and where its tokens
    are there, in the device's work; steps may be launched ahead of one another."""

    def __init__(self, runner: ModelRunner, device: torch.device) -> None:
        self._runner, self._device = runner, device
        self._starts: list[Mark] = []
        self._ends: list[Mark] = []
        self.launched_at = 0.0
        """of the newest step, by the host's clock"""

    def __len__(self) -> int:
        return len(self._ends)

    def __enter__(self) -> StepMarks:
        graphs, sampler = self._runner.graphs, self._runner.sampler
        run, read = graphs.run, sampler._read

        def marked_run(*args: Any) -> Any:
            self._starts.append(Mark(self._device))
            return run(*args)

        def marked_read(*args: Any) -> Any:
            self._ends.append(Mark(self._device))
            self.launched_at = time.perf_counter()
            return read(*args)

        graphs.run, sampler._read = marked_run, marked_read  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        del self._runner.graphs.run, self._runner.sampler._read

    def busy_ms(self, begin: int = 0, end: int | None = None) -> list[float]:
        """Of the steps `begin` to `end`, in the order of their launch."""
        synchronize(self._device)
        pairs = zip(self._starts[begin:end], self._ends[begin:end], strict=True)
        return [first.until(last) for first, last in pairs]
