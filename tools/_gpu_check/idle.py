"""How long the device waits for the host while steps overlap, as the engine runs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from graphs import Kind
from runtime.data.params import SamplingParams
from runtime.data.request import Request
from runtime.engine import Engine
from runtime.runner import ModelRunner
from runtime.scheduler import Scheduler
from tools._gpu_check.batches import random_tokens
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale
from tools._gpu_check.step_times import WARM_UPS, StepMarks

IDLE_AIM = 0.05
"""Share of the time in which the device waits for the host."""
ROWS = 64
STEPS_PER_REPEAT = 2


class Marks(Protocol):
    """What `StepMarks` tells."""

    def __len__(self) -> int: ...
    def busy_ms(self, begin: int = 0, end: int | None = None) -> list[float]: ...


class Overlapped(NamedTuple):
    """Of some decode steps that followed one another."""

    step: float
    """milliseconds from one to the next, by the host's clock"""
    device: float
    """of these the device was busy"""
    steps: int
    ahead: int
    """of them, how many were launched before the one before was collected"""
    kinds: Counter[str]

    @property
    def idle(self) -> float:
        return max(0.0, 1 - self.device / self.step)


@dataclass(frozen=True, slots=True)
class OverlappedSteps:
    """Decode steps of many requests, by the real scheduler and engine."""

    job: str
    runner: ModelRunner
    config: Any
    scale: Scale
    block_size: int
    num_blocks: int

    @property
    def rows(self) -> int:
        """Requests; 0 where the KV pool holds none."""
        fitting: int = self.num_blocks * self.block_size // self.config.model.max_model_len
        return min(ROWS, max(self.scale.rows), fitting)

    @property
    def context(self) -> int:
        """Tokens of each request before its first step."""
        return min(self.scale.contexts)

    def run(self) -> Overlapped:
        vocab_size = self.runner.sampler.vocab_size
        engine = make_engine(
            self.runner,
            self.config,
            vocab_size=vocab_size,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            overlap=True,
        )
        rng = np.random.default_rng(2)
        params = SamplingParams(temperature=0.0, max_tokens=self.config.model.max_model_len)
        requests = [
            Request(f"r{i}", random_tokens(rng, self.context, vocab_size), params)
            for i in range(self.rows)
        ]
        with StepMarks(self.runner, self.scale.device) as marks:
            return run_overlapped(engine, marks, requests, STEPS_PER_REPEAT * self.scale.repeats)


def check_idle(steps: OverlappedSteps, report: Report, deadline: Deadline) -> None:
    """A line: the device must be busy almost all of the time."""
    line = f"{steps.job} overlapped {steps.rows} x {steps.context}"
    if deadline.is_over or not steps.rows:
        reason = "time limit" if steps.rows else "the KV pool holds no request"
        report.skip("host", line, reason)
        return
    found = steps.run()
    is_overlapped = found.ahead == found.steps and set(found.kinds).isdisjoint({Kind.EAGER.value})
    reason = f"the device is idle for more than {IDLE_AIM:.0%} of the time"
    report.check(
        "host",
        line,
        is_overlapped and (found.idle <= IDLE_AIM or not steps.scale.has_aims),
        reason if is_overlapped else "steps were not launched ahead, or ran eagerly",
        step_ms=found.step,
        device_ms=found.device,
        idle_share=found.idle,
        steps=found.steps,
        ahead=found.ahead,
        **found.kinds,
    )


def make_engine(
    runner: ModelRunner,
    config: Any,
    *,
    vocab_size: int,
    block_size: int,
    num_blocks: int,
    overlap: bool,
    max_model_len: int = 0,
    prefix_caching: bool = False,
) -> Engine:
    """The engine of a runtime, over a runner that may have served others.

    Args:
        max_model_len: 0 is the configuration's.
    """
    max_model_len = max_model_len or config.model.max_model_len
    scheduler = Scheduler(
        config.scheduler,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
        hash_name="sha256",  # the other one needs a package
        runs_ahead=overlap,
    )
    return Engine(scheduler, runner, vocab_size=vocab_size, max_model_len=max_model_len)


def run_overlapped(
    engine: Engine, marks: Marks, requests: Sequence[Request], steps: int
) -> Overlapped:
    """Run the requests until all of them decode, time so many steps, and end them."""
    for request in requests:
        engine.add(request)
    while not all(request.output_token_ids for request in requests):
        engine.step()
    for _ in range(WARM_UPS):
        engine.step()
    stats, kinds = engine.scheduler.stats, Counter(engine.counters.kinds)
    ahead, begin = stats.steps_ahead, len(marks)
    started = time.perf_counter()
    for _ in range(steps):
        engine.step()
    wall = (time.perf_counter() - started) * 1e3
    ahead = engine.scheduler.stats.steps_ahead - ahead
    kinds = engine.counters.kinds - kinds
    end = len(marks)
    engine.finish([request.request_id for request in requests])
    engine.step()  # collects what is in flight
    busy = marks.busy_ms(begin, end)
    return Overlapped(wall / steps, sum(busy) / steps, steps, ahead, kinds)
