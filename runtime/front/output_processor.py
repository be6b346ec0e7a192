"""From the engine's outputs to deltas: text, stop strings, ends, and who waits for which."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable

from runtime.data.request import FinishReason
from runtime.data.results import Delta
from runtime.data.step import RequestOutput
from runtime.engine import Engine
from runtime.front.live_request import LiveRequest

log = logging.getLogger(__name__)


class OutputProcessor:
    """The requests that run, and the inboxes that their deltas go to.

    Attributes:
        live: by the user's id.
        inbox: of deltas that nobody claimed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.live: dict[str, LiveRequest] = {}
        self.inbox: deque[Delta] = deque()
        self._samples: dict[str, tuple[LiveRequest, int]] = {}
        self._inboxes: dict[str, deque[Delta]] = {}
        self.num_finished = self.cached_tokens = self.output_tokens = 0

    def add(self, live: LiveRequest) -> None:
        self.live[live.request_id] = live
        for index, sample in enumerate(live.samples):
            self._samples[sample.request.request_id] = (live, index)

    def claim(self, request_id: str, inbox: deque[Delta]) -> None:
        """Send the deltas of a request to this inbox."""
        self._inboxes[request_id] = inbox

    def disclaim(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._inboxes.pop(request_id, None)

    def take(self) -> list[Delta]:
        """The deltas that nobody claimed, since the last call."""
        deltas = list(self.inbox)
        self.inbox.clear()
        return deltas

    def abort(self, request_id: str) -> None:
        """End a request; nothing for an id that is unknown or has ended."""
        live = self.live.get(request_id)
        if live is not None:
            names = [s.request.request_id for s in live.samples if s.finish_reason is None]
            self.deliver(self._engine.finish(names, FinishReason.ABORT))

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Turn outputs into deltas; end in the engine what its text has ended."""
        now_s = time.perf_counter()
        for output in outputs:
            name = output.request.request_id
            if name not in self._samples:
                continue
            live, index = self._samples[name]
            try:
                delta = live.advance(index, output, now_s)
            except Exception as error:  # of one request's text: the others go on
                log.exception("request %s: its text cannot be made", name)
                delta = live.fail(index, f"text: {type(error).__name__}: {error}", now_s)
            self.output_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._end_sample(live, index, still_runs=output.finish_reason is None)
            if delta.finished is not None:
                self.num_finished += 1
                self.cached_tokens += delta.finished.num_cached_tokens
                del self.live[live.request_id]
            self._inboxes.get(live.request_id, self.inbox).append(delta)

    def _end_sample(self, live: LiveRequest, index: int, still_runs: bool) -> None:
        sample = live.samples[index]
        del self._samples[sample.request.request_id]
        if still_runs:  # it ended by its text: a stop string, or text that cannot be made
            assert sample.finish_reason is not None
            self._engine.finish([sample.request.request_id], FinishReason.STOP, sample.stop_reason)
