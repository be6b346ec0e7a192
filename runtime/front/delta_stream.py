"""DeltaStream: the deltas of some requests, for whoever iterates them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from runtime.data.results import Delta


class DeltaStream(Iterator[Delta]):
    """Steps the engine until all of its requests have ended; yields what each step adds to them.

    Closing it, or letting go of it, aborts what is unfinished, also before the first delta.

    Args:
        num_requests: whose deltas come to `inbox`.
        advance: runs one step.
        abandon: ends the requests that are unfinished.
    """

    def __init__(
        self, num_requests: int, advance: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self.inbox: deque[Delta] = deque()
        self._num_unfinished = num_requests
        self._advance = advance
        self._abandon: Callable[[], None] | None = abandon

    def __next__(self) -> Delta:
        try:
            while not self.inbox:
                if not self._num_unfinished or self._abandon is None:
                    raise StopIteration
                self._advance()
        except BaseException:
            self.close()
            raise
        delta = self.inbox.popleft()
        self._num_unfinished -= delta.finished is not None
        return delta

    def close(self) -> None:
        abandon, self._abandon = self._abandon, None
        if abandon is not None:
            abandon()

    def __del__(self) -> None:
        self.close()
