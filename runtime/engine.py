"""The step loop, on token ids: schedule, launch, collect, update.

Nothing here knows text or tensors.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.data.request import FinishReason, Request
from runtime.data.step import RequestOutput, RunnerOutput, SchedulerOutput
from runtime.errors import RequestError
from runtime.observe.stats import StepCounters
from runtime.observe.steps import StepObserver
from runtime.observe.watch import StepWatch
from runtime.scheduler import Scheduler

log = logging.getLogger(__name__)


class Runner(Protocol):
    def launch(self, so: SchedulerOutput) -> Any:
        """Queue one step; steps run in the order of their launch."""

    def collect(self, launched: Any) -> RunnerOutput:
        """Wait for what a step gave, oldest first."""


_NO_CONTEXT = nullcontext()


@dataclass(slots=True)
class _Flight:
    so: SchedulerOutput
    launched: Any = None
    watch: StepWatch | None = None
    """where somebody observes"""


class Engine:
    """Owns the scheduler and drives the runner.

    Args:
        vocab_size: ids at or above it are refused.
        max_model_len: a prompt of this many tokens or more is refused.
        check_integrity: check pool and scheduler after every step (slow).
        threads: the context that each step runs in.
        observer: is told of each step; the caller closes it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        vocab_size: int,
        max_model_len: int,
        check_integrity: bool = False,
        threads: AbstractContextManager[object] = _NO_CONTEXT,
        observer: StepObserver | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.counters = StepCounters()
        self._check_integrity = check_integrity
        self._threads = threads
        self.observer = observer
        self._unfinished: set[str] = set()
        self._flights: deque[_Flight] = deque()
        """Launched and not collected yet, oldest first."""
        self._outputs: list[RequestOutput] = []
        """For the next return of `step`."""

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: naming the field; nothing else is affected.
        """
        self.check(request)
        self._unfinished.add(request.request_id)
        self.scheduler.add(request)

    def check(self, request: Request) -> None:
        """Refuse what cannot be served, without queueing anything; raises as `add` does."""
        check_prompt(request.prompt_token_ids, self.vocab_size, self.max_model_len)
        if request.request_id in self._unfinished:
            raise RequestError("request_id", f"{request.request_id!r} is already in use")

    def step(self) -> list[RequestOutput]:
        """Run one step; what changed, finished requests included.

        Where the scheduler runs ahead, a step stays in flight between two calls, and what a call
        returns is of the one before. A step that fails ends the requests that were in it with an
        error; all others go on.
        """
        started = time.perf_counter()
        with self._threads:
            has_launched = self._launch_next()
            if not has_launched and self._flights:
                self._collect_oldest()
                has_launched = self._launch_next()  # what had to wait for these tokens
            while len(self._flights) > (has_launched and self.scheduler.runs_ahead):
                self._collect_oldest()
        self.counters.busy_s += time.perf_counter() - started
        if self._check_integrity:
            self.scheduler.check_integrity()
        outputs, self._outputs = self._outputs, []
        return self._noted(outputs)

    def finish(
        self,
        request_ids: Iterable[str],
        reason: FinishReason = FinishReason.ABORT,
        stop_reason: int | str | None = None,
    ) -> list[RequestOutput]:
        """End requests now, at any moment between two steps; unknown or ended ids are ignored."""
        return self._noted(self.scheduler.finish(request_ids, reason, stop_reason))

    def has_unfinished(self) -> bool:
        return bool(self._unfinished)

    def _launch_next(self) -> bool:
        """False where there is nothing to run now."""
        started_s = time.perf_counter()
        so = self.scheduler.schedule()
        if not so.num_reqs:
            return False
        flight = _Flight(so)
        if self.observer is not None:
            flight.watch = StepWatch(self.scheduler, so, started_s)
        try:
            flight.launched = self.runner.launch(so)
        except Exception as error:
            while self._flights:  # they ran before it
                self._collect_oldest()
            self._fail([flight], error)
        except BaseException:
            self._interrupt(flight)
            raise
        else:
            self._flights.append(flight)
            if flight.watch is not None:
                flight.watch.note_launched()
        return True

    def _collect_oldest(self) -> None:
        flight = self._flights.popleft()
        collecting_s = time.perf_counter()
        try:
            ro = self.runner.collect(flight.launched)
        except Exception as error:
            # those behind it build on its K/V
            failed = [flight, *self._flights]
            self._flights.clear()
            self._fail(failed, error)
        except BaseException:
            self._flights.appendleft(flight)
            self._interrupt()
            raise
        else:
            collected_s = time.perf_counter()
            outputs = self.scheduler.update_from_output(flight.so, ro)
            self._outputs += outputs
            self.counters.count(ro.shape)
            if self.observer is not None and flight.watch is not None:
                record = flight.watch.ended(ro, outputs, collecting_s, collected_s)
                self.observer.on_step(record)

    def _fail(self, flights: list[_Flight], error: Exception) -> None:
        for flight in flights:
            so = flight.so
            log.error(
                "step %d failed; its %d requests end with an error",
                so.step_id,
                so.num_reqs,
                exc_info=error,
            )
            self.counters.failed_steps += 1
            why = f"step failed: {type(error).__name__}: {error}"
            self._end_unrun(flight, why)

    def _interrupt(self, *flights: _Flight) -> None:
        """Leave the scheduler consistent, so that the caller may stop, or go on."""
        for flight in (*self._flights, *flights):
            self._end_unrun(flight, "interrupted")
        self._flights.clear()

    def _end_unrun(self, flight: _Flight, why: str) -> None:
        outputs = self.scheduler.fail_step(flight.so, why)
        self._outputs += outputs
        if self.observer is not None and flight.watch is not None:
            self.observer.on_step(flight.watch.failed(why, outputs))

    def _noted(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        self._unfinished.difference_update(
            o.request.request_id for o in outputs if o.finish_reason is not None
        )
        return outputs


def check_prompt(token_ids: list[int], vocab_size: int, max_model_len: int) -> None:
    """Refuse a prompt that cannot be served.

    Raises:
        RequestError: an empty prompt, one of max_model_len tokens or more, ids out of range or not
        ints.
    """
    if not token_ids:
        raise RequestError("prompt", "must not be empty (0 tokens)")
    if len(token_ids) >= max_model_len:
        raise RequestError(
            "prompt",
            f"has {len(token_ids)} tokens; at most {max_model_len - 1} fit "
            f"(max_model_len {max_model_len}, one token at least is generated)",
        )
    for position, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise RequestError(
                "token_ids",
                f"position {position} holds {token_id!r}; ids are integers in [0, {vocab_size})",
            )
