"""What an observer is told of each step: the schedule and its reasons, shape, times, results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runtime.data.step import RequestOutput, RunnerOutput, SchedulerOutput


class Preemption(NamedTuple):
    """A running request that had to give back its row and its blocks."""

    request_id: str
    num_computed_tokens: int
    """what it loses; a prefix hit may give some back"""
    reason: str


class ScheduleNotes(NamedTuple):
    """Why a step is not larger than it is; the schedule itself is the SchedulerOutput."""

    preempted: tuple[Preemption, ...] = ()
    """since the last step that held a request"""
    held_back: str = ""
    """why the first waiting request was not admitted; "" where none waits"""


class StepTimes(NamedTuple):
    """Seconds of the host in the parts of a step; between launch and collect the device works, and
    where the scheduler runs ahead, so do other steps."""

    schedule_s: float
    launch_s: float
    collect_s: float = 0.0
    update_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that was launched, with what came of it; B requests, S of them sample."""

    so: SchedulerOutput
    request_ids: tuple[str, ...]
    """[B], in the order of `so.rows`"""
    notes: ScheduleNotes
    num_running: int
    num_waiting: int
    """both after the step was scheduled"""
    num_blocks_used: int
    """KV blocks that requests held after the step was scheduled"""
    started_s: float
    """on time.perf_counter's clock, before it was scheduled"""
    times: StepTimes
    outputs: tuple[RequestOutput, ...]
    """What it changed; where it failed, the requests that it ended."""
    ro: RunnerOutput | None = None
    """None where the step failed"""
    error: str = ""
    """why it failed"""


class StepObserver(Protocol):
    """Is told of every step of an engine, in the order in which they end, on the engine's thread.

    What it raises ends the engine's step: an observer that may fail (a full disk) catches that
    itself. Records are fresh, safe to keep.
    """

    def on_step(self, record: StepRecord) -> None:
        """A step has ended."""

    def close(self) -> None:
        """No step follows; called once, when the runtime is closed."""
