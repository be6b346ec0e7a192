"""Queues of waiting requests: first come first served, or by priority. Leaving early is cheap."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from runtime.data.request import Request


class WaitingQueue(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def add(self, request: Request) -> None:
        """A new request."""

    def put_back(self, request: Request) -> None:
        """A preempted request, ahead of those who wait."""

    def head(self) -> Request:
        """The next request; the queue must not be empty."""

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""


class FcfsQueue:
    """Order of arrival; a preempted request goes to the front."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def head(self) -> Request:
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]


class PriorityQueue:
    """Lowest `priority` first, then earliest arrival; a preempted request takes its place by that.

    A heap. An entry whose request has left stays until it surfaces, or until such entries are the
    majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Request]] = []
        self._tickets: dict[str, int] = {}
        """request_id -> number of its valid entry, which also breaks ties by order of coming."""
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap) if self._is_valid(entry))

    def add(self, request: Request) -> None:
        self._num_added += 1
        self._tickets[request.request_id] = self._num_added
        entry = (request.priority, request.arrival_s, self._num_added, request)
        heapq.heappush(self._heap, entry)

    def put_back(self, request: Request) -> None:
        self.add(request)

    def head(self) -> Request:
        while not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][3]

    def remove(self, request: Request) -> None:
        del self._tickets[request.request_id]
        if len(self._heap) > 16 and len(self._heap) > 2 * len(self._tickets):
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def _is_valid(self, entry: tuple[int, float, int, Request]) -> bool:
        return self._tickets.get(entry[3].request_id) == entry[2]


def make_queue(order: str) -> WaitingQueue:
    return PriorityQueue() if order == "priority" else FcfsQueue()
