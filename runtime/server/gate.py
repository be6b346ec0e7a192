"""How many samples may be in the server at once, and what those hear that may not."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.server.errors import ApiError, bad_request

_MAX_RETRY_S = 60
_MEMORY = 0.9
"""Weight of what was seen before, in the mean time of a request."""


class Gate:
    """Counts samples from their admission to their end; used in one event loop.

    Args:
        max_running: samples that run at once.
        max_queued: further ones that may wait for them.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self.capacity = max_running + max_queued
        self.num_inside = 0
        self.num_requests = 0
        self.is_closed = False
        self._mean_s = 1.0
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def entered(self, num_samples: int) -> Iterator[None]:
        """Holds places for a request while the block runs.

        Raises:
            ApiError: 429 with Retry-After where they are taken, 503 while the server ends, 400
            where there are not so many places.
        """
        self.check_open()
        if num_samples > self.capacity:
            raise bad_request(
                "n", f"{num_samples} choices were asked for; at most {self.capacity} are served"
            )
        if self.num_inside + num_samples > self.capacity:
            raise self._full()
        began_s = time.monotonic()
        self.num_inside += num_samples
        self.num_requests += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.num_inside -= num_samples
            self.num_requests -= 1
            self._mean_s += (1 - _MEMORY) * (time.monotonic() - began_s - self._mean_s)
            if not self.num_requests:
                self._empty.set()

    def check_open(self) -> None:
        """Raises ApiError: 503 while the server ends."""
        if self.is_closed:
            raise ApiError(503, "the server is shutting down", code="shutting_down")

    def close(self) -> None:
        """Let no more in."""
        self.is_closed = True

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _full(self) -> ApiError:
        waiting = max(1, self.num_inside - self._max_running)
        seconds = math.ceil(self._mean_s * waiting / self._max_running)
        return ApiError(
            429,
            f"{self.num_inside} samples run or wait, and at most {self.capacity} may: try later",
            code="queue_full",
            headers={"Retry-After": str(min(max(1, seconds), _MAX_RETRY_S))},
        )
