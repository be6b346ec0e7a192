"""StepWatch: gathers the record of one step while it is under way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from runtime.data.step import RequestOutput, RunnerOutput, SchedulerOutput
from runtime.observe.steps import ScheduleNotes, StepRecord, StepTimes


class _Blocks(Protocol):
    @property
    def num_used_blocks(self) -> int: ...


class Scheduled(Protocol):
    """What is read of a scheduler that has just made a step."""

    notes: ScheduleNotes
    pool: _Blocks

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    def request_ids(self, so: SchedulerOutput) -> tuple[str, ...]: ...


class StepWatch:
    """Of one step, made right after it was scheduled.

    Args:
        started_s: on time.perf_counter's clock, before `schedule`.
    """

    __slots__ = ("_launch_s", "_scheduled_s", "_scheduler_says", "_sizes", "_so", "_started_s")

    def __init__(self, scheduler: Scheduled, so: SchedulerOutput, started_s: float) -> None:
        self._so = so
        self._started_s = started_s
        self._scheduled_s = time.perf_counter()
        self._scheduler_says = scheduler.request_ids(so), scheduler.notes
        used = scheduler.pool.num_used_blocks
        self._sizes = scheduler.num_running, scheduler.num_waiting, used
        self._launch_s = 0.0

    def note_launched(self) -> None:
        self._launch_s = time.perf_counter() - self._scheduled_s

    def ended(
        self,
        ro: RunnerOutput,
        outputs: Sequence[RequestOutput],
        collecting_s: float,
        collected_s: float,
    ) -> StepRecord:
        """The record of a step that has run; its update ends now.

        Args:
            collecting_s: on time.perf_counter's clock, before `collect`.
            collected_s: after it.
        """
        times = self._times(collected_s - collecting_s, time.perf_counter() - collected_s)
        return self._record(times, outputs, ro=ro)

    def failed(self, error: str, outputs: Sequence[RequestOutput]) -> StepRecord:
        """The record of a step that raised, or never came back."""
        return self._record(self._times(0.0, 0.0), outputs, error=error)

    def _times(self, collect_s: float, update_s: float) -> StepTimes:
        schedule_s = self._scheduled_s - self._started_s
        return StepTimes(schedule_s, self._launch_s, collect_s, update_s)

    def _record(
        self,
        times: StepTimes,
        outputs: Sequence[RequestOutput],
        *,
        ro: RunnerOutput | None = None,
        error: str = "",
    ) -> StepRecord:
        request_ids, notes = self._scheduler_says
        return StepRecord(
            self._so,
            request_ids,
            notes,
            *self._sizes,
            self._started_s,
            times,
            tuple(outputs),
            ro,
            error,
        )
