"""Drives a Runtime in this process as clients would: requests come at their times, whatever the
engine does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from runtime.config import RequestConfig
from runtime.data.results import Delta
from runtime.errors import RequestError, StepError
from runtime.workbench.records import LoadRun, RequestRecord, record_of

_LONGEST_SLEEP_S = 0.05
"""So that an interrupt is seen soon."""


class LoadRuntime(Protocol):
    """What is asked of a Runtime."""

    def add_request(
        self,
        prompt: str | None = None,
        *,
        chat: Sequence[Mapping[str, Any]] | None = None,
        token_ids: Sequence[int] | None = None,
        params: Mapping[str, Any] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arrival_s: float | None = None,
    ) -> str: ...
    def step(self) -> list[Delta]: ...
    def abort(self, request_id: str) -> None: ...
    def has_unfinished(self) -> bool: ...


class Clock:
    """time.perf_counter, which a Runtime measures with; tests have one of their own."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Progress(NamedTuple):
    """Where a run stands after a step."""

    time_s: float
    num_done: int
    num_running: int
    """In the engine."""
    num_output_tokens: int


class Watcher(Protocol):
    """Is told while a load runs."""

    def on_step(self, progress: Progress) -> None:
        """A step has ended."""

    def on_end(self, record: RequestRecord) -> None:
        """A request has ended, or was refused."""


def run_load(
    runtime: LoadRuntime,
    requests: Sequence[RequestConfig],
    due_s: Sequence[float],
    *,
    max_concurrency: int | None = None,
    watcher: Watcher | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> LoadRun:
    """Run requests to their end.

    A request that comes during a step enters the engine after it, but its times count from when it
    came: a slow step delays no clock.

    Args:
        due_s: when each request comes, in seconds from now; ascending.
        max_concurrency: requests that the client has in the engine at once; the others wait in the
            client, and their times count from when they were sent. None: no limit.
        is_stopped: asked between steps; True breaks the load off.

    Raises:
        StepError, EngineError: the engine stopped.
    """
    client = _Client(runtime, requests, due_s, max_concurrency, watcher, clock or Clock())
    return client.run(is_stopped)


@dataclass(slots=True)
class _Sent:
    index: int
    due_s: float
    sent_s: float


class _Client:
    def __init__(
        self,
        runtime: LoadRuntime,
        requests: Sequence[RequestConfig],
        due_s: Sequence[float],
        max_concurrency: int | None,
        watcher: Watcher | None,
        clock: Clock,
    ) -> None:
        self._runtime, self._clock, self._watcher = runtime, clock, watcher
        self._waiting = deque(zip(range(len(requests)), requests, map(float, due_s), strict=True))
        self._live: dict[str, _Sent] = {}
        self._free_s = None if max_concurrency is None else deque([0.0] * max_concurrency)
        """When each free place of the client became free."""
        self._records: list[RequestRecord] = []
        self._num_output_tokens = 0
        self._start_s = clock.now()

    def run(self, is_stopped: Callable[[], bool]) -> LoadRun:
        while self._waiting or self._live:
            if is_stopped():
                self._abort()
                break
            self._send_due()
            if self._live:
                self._step()
            elif self._waiting:
                self._sleep()
        records = sorted(self._records, key=lambda record: record.index)
        return LoadRun(tuple(records), self._now(), not (self._waiting or self._live))

    def _now(self) -> float:
        return self._clock.now() - self._start_s

    def _send_due(self) -> None:
        now_s = self._now()
        while self._waiting and self._waiting[0][2] <= now_s and self._free_s != deque():
            index, request, due_s = self._waiting.popleft()
            sent_s = due_s if self._free_s is None else max(due_s, self._free_s.popleft())
            try:
                request_id = self._add(request, sent_s)
            except RequestError as error:
                self._end(RequestRecord(index, due_s, sent_s, error=str(error)))
            else:
                self._live[request_id] = _Sent(index, due_s, sent_s)

    def _add(self, request: RequestConfig, sent_s: float) -> str:
        return self._runtime.add_request(
            request.prompt,
            chat=request.chat,
            token_ids=request.token_ids,
            params=request.sampling,
            priority=request.priority,
            cache_salt=request.cache_salt,
            tools=request.tools,
            arrival_s=self._start_s + sent_s,
        )

    def _step(self) -> None:
        for delta in self._runtime.step():
            self._num_output_tokens += len(delta.token_ids)
            if delta.finished is not None:
                sent = self._live.pop(delta.request_id)
                self._end(record_of(sent.index, sent.due_s, sent.sent_s, delta.finished))
        if self._watcher is not None:
            state = (len(self._records), len(self._live), self._num_output_tokens)
            self._watcher.on_step(Progress(self._now(), *state))
        if self._live and not self._runtime.has_unfinished():
            raise StepError(f"the engine stopped with {len(self._live)} requests unfinished")

    def _end(self, record: RequestRecord) -> None:
        self._records.append(record)
        if self._free_s is not None:
            self._free_s.append(record.end_s)
        if self._watcher is not None:
            self._watcher.on_end(record)

    def _sleep(self) -> None:
        wait_s = self._waiting[0][2] - self._now()
        if wait_s > 0:
            self._clock.sleep(min(wait_s, _LONGEST_SLEEP_S))

    def _abort(self) -> None:
        for request_id in self._live:
            self._runtime.abort(request_id)
        if self._live:
            self._runtime.step()
