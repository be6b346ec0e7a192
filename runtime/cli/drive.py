"""Runs jobs through a Runtime and tells listeners what happens; an interrupt loses nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from runtime.cli.interrupts import Interrupt
from runtime.cli.work import Job
from runtime.config import RequestConfig
from runtime.data.results import Delta, Result
from runtime.errors import RequestError, StepError

if TYPE_CHECKING:
    from runtime.front.api import Runtime


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: with a result, or without one and the reason why."""

    job: Job
    result: Result | None
    finish_reason: str
    error: str | None


class Listener(Protocol):
    def on_delta(self, job: Job, delta: Delta) -> None:
        """A step added something to the job."""

    def on_end(self, ended: Ended) -> None:
        """The job ended; called once for each job, in the order of their ends."""


def drive(
    runtime: Runtime,
    jobs: Sequence[Job],
    listeners: Sequence[Listener],
    interrupt: Interrupt,
    *,
    look_ahead: int | None,
) -> None:
    """Run every job to its end, or until the interrupt: then what runs is aborted and reported.

    Args:
        look_ahead: jobs that are given to the runtime at a time, so that a long input is tokenized
            as it is needed; None gives all at once, which an order by priority needs.
    """
    waiting = deque(jobs)
    live: dict[str, Job] = {}

    def end(job: Job, result: Result | None, reason: str, error: str | None = None) -> None:
        for listener in listeners:
            listener.on_end(Ended(job, result, reason, error))

    while (waiting or live) and not interrupt.signum:
        while waiting and (look_ahead is None or len(live) < look_ahead):
            job = waiting.popleft()
            if job.request is None:
                end(job, None, "error", job.error)
                continue
            try:
                live[_add(runtime, job, job.request)] = job
            except RequestError as error:
                end(job, None, "error", f"{job.place}: {error}" if job.place else str(error))
        _take(runtime, live, listeners)
        if live and not runtime.has_unfinished():
            raise StepError(f"the engine stopped with {len(live)} requests unfinished")
    for request_id in list(live):
        runtime.abort(request_id)
    if live:
        _take(runtime, live, listeners)
    for job in waiting:
        end(job, None, "abort")


def _add(runtime: Runtime, job: Job, request: RequestConfig) -> str:
    return runtime.add_request(
        request.prompt,
        chat=request.chat,
        token_ids=request.token_ids,
        params=job.sampling,
        priority=request.priority,
        cache_salt=request.cache_salt,
        tools=request.tools,
    )


def _take(runtime: Runtime, live: dict[str, Job], listeners: Sequence[Listener]) -> None:
    """One step, and what it changed."""
    for delta in runtime.step():
        job = live[delta.request_id]
        for listener in listeners:
            listener.on_delta(job, delta)
        if delta.finished is not None:
            del live[delta.request_id]
            result = delta.finished
            reason = "error" if result.error else result.finish_reason
            for listener in listeners:
                listener.on_end(Ended(job, result, reason, result.error))
