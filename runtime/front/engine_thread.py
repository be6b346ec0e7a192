"""EngineThread: the thread that owns a Runtime, and the mailboxes through which it answers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import groupby
from typing import Any, TypeVar

from runtime.data.results import Delta
from runtime.errors import EngineError, StepgraphError
from runtime.front.api import Runtime

T = TypeVar("T")


def renewed(error: BaseException) -> BaseException:
    """What one more waiter may raise: an exception of its own, where many get the same."""
    if not isinstance(error, EngineError):
        return error
    copy = EngineError(str(error))
    copy.__cause__ = error.__cause__
    return copy


class Mailbox:
    """What one request has for its reader. Filled by the engine thread, emptied in its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wanted_id: str | None = None) -> None:
        self.loop = loop
        self.wanted_id = wanted_id
        """The id that the client asked for; it has none before it enters the runtime."""
        self.is_left = False
        self.request_id: str | None = None
        self._deltas: deque[Delta] = deque()
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)

    def fail(self, error: BaseException) -> None:
        self._error = error

    def wake(self) -> None:
        """To be called in the reader's loop."""
        self._news.set()

    async def take(self) -> list[Delta]:
        """Wait for news; all of it, in order.

        Raises:
            RequestError, EngineError: after the last delta.
        """
        while True:
            self._news.clear()
            error = self._error  # read first: deltas come before the error
            found = [self._deltas.popleft() for _ in range(len(self._deltas))]
            if found:
                return found
            if error is not None:
                raise renewed(error)
            await self._news.wait()


AddRequest = Callable[[Runtime], str]


class EngineThread:
    """The thread that owns the runtime. Its public methods may be called from any thread."""

    def __init__(self, make: Callable[[], Runtime], max_inflight: int) -> None:
        self.error: BaseException | None = None
        self._make = make
        self._max_inflight = max_inflight
        self._orders: queue.SimpleQueue[tuple[Callable[[Runtime], Any], Future[Any]] | None]
        self._orders = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held while an order is given or the engine dies, so that no order is left unanswered."""
        self._boxes: dict[str, Mailbox] = {}
        self._outside: deque[tuple[Mailbox, AddRequest]] = deque()
        self._thread = threading.Thread(target=self._run, name="stepgraph-engine", daemon=True)
        self._thread.start()

    # -- from any thread ----------------------------------------------------------------------

    def call(self, function: Callable[[Runtime], T]) -> Future[T]:
        """Have a function run between two steps."""
        answer: Future[T] = Future()
        with self._lock:
            if self.error is None:
                self._orders.put((function, answer))
            else:
                answer.set_exception(renewed(self.error))
        return answer

    def add(self, box: Mailbox, add_request: AddRequest) -> None:
        """Queue a request; everything that comes of it goes to `box`."""

        def enter(_: Runtime) -> None:
            self._outside.append((box, add_request))

        def tell(answer: Future[None]) -> None:
            error = None if answer.cancelled() else answer.exception()
            if error is not None:
                box.fail(error)
                self._wake(None, [box])

        self.call(enter).add_done_callback(tell)

    def abort(self, request_id: str) -> Future[None]:
        """End a request; unknown and ended ids are ignored."""
        return self.call(lambda runtime: self._abort(runtime, request_id))

    def leave(self, box: Mailbox) -> None:
        """End a request whose reader has gone, if it still runs."""
        box.is_left = True
        if box.request_id is None or self._boxes.get(box.request_id) is box:
            self.call(lambda runtime: self._forget(runtime, box))

    def stop(self) -> None:
        """Let the current step end, end every request, and wait for the thread."""
        self._orders.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- on the engine thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            runtime = self._make()
        except BaseException as error:
            self._die(error if isinstance(error, StepgraphError) else _crash(error))
            return
        try:
            while self._obey(runtime):
                self._admit(runtime)
                if runtime.has_unfinished():
                    self._deliver(runtime, runtime.step())
            self._end_all(runtime)
            self._die(EngineError("the engine was closed"))
        except BaseException as error:
            self._die(_crash(error))
        finally:
            runtime.close()

    def _obey(self, runtime: Runtime) -> bool:
        """Carry out the orders that wait; without work, wait for one. False means to stop."""
        is_idle = not runtime.has_unfinished() and not self._outside
        while True:
            try:
                order = self._orders.get(block=is_idle)
            except queue.Empty:
                return True
            if order is None:
                return False
            function, answer = order
            is_idle = False
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(function(runtime))
            except Exception as error:
                answer.set_exception(error)
            except BaseException as error:  # the engine dies of it; its caller is answered first
                answer.set_exception(_crash(error))
                raise

    def _admit(self, runtime: Runtime) -> None:
        while self._outside and len(self._boxes) < self._max_inflight:
            box, add_request = self._outside.popleft()
            if not box.is_left:
                self._enter(runtime, box, add_request)

    def _enter(self, runtime: Runtime, box: Mailbox, add_request: AddRequest) -> None:
        try:
            request_id = add_request(runtime)
        except Exception as error:
            box.fail(error)
            self._wake(runtime, [box])
        except BaseException as error:  # the engine dies of it; its reader is answered first
            box.fail(_crash(error))
            self._wake(runtime, [box])
            raise
        else:
            self._boxes[request_id] = box
            box.request_id = request_id  # last: `leave` reads both without a lock

    def _abort(self, runtime: Runtime, request_id: str) -> None:
        """Ends a request, also one that still waits to enter: it enters first, for its end."""
        for waiting in self._outside:
            if waiting[0].wanted_id == request_id:
                self._outside.remove(waiting)
                self._enter(runtime, *waiting)
                break
        runtime.abort(request_id)

    def _deliver(self, runtime: Runtime, deltas: list[Delta]) -> None:
        woken: dict[int, Mailbox] = {}
        for delta in deltas:
            box = self._boxes.get(delta.request_id)
            if box is None:
                continue
            box.put(delta)
            woken[id(box)] = box
            if delta.finished is not None:
                del self._boxes[delta.request_id]
        self._wake(runtime, list(woken.values()))

    def _wake(self, runtime: Runtime | None, boxes: list[Mailbox]) -> None:
        """Wake readers, with one call for each event loop."""
        boxes.sort(key=lambda box: id(box.loop))
        for _, group in groupby(boxes, key=lambda box: id(box.loop)):
            of_loop = list(group)
            try:
                of_loop[0].loop.call_soon_threadsafe(_wake_all, of_loop)
            except RuntimeError:  # the loop is closed: nobody will read these
                for box in of_loop:
                    if runtime is not None:
                        self._forget(runtime, box)

    def _forget(self, runtime: Runtime, box: Mailbox) -> None:
        if box.request_id is not None and self._boxes.get(box.request_id) is box:
            del self._boxes[box.request_id]
            runtime.abort(box.request_id)

    def _end_all(self, runtime: Runtime) -> None:
        for request_id in list(self._boxes):
            runtime.abort(request_id)
        if self._boxes:
            self._deliver(runtime, runtime.step())

    def _die(self, error: BaseException) -> None:
        with self._lock:
            self.error = error
            while not self._orders.empty():
                order = self._orders.get()
                if order is not None and order[1].set_running_or_notify_cancel():
                    order[1].set_exception(renewed(error))
        waiting = [*self._boxes.values(), *(box for box, _ in self._outside)]
        self._boxes.clear()
        self._outside.clear()
        for box in waiting:
            box.fail(error)
        self._wake(None, waiting)


def _crash(cause: BaseException) -> EngineError:
    error = EngineError(f"the engine has crashed: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def _wake_all(boxes: list[Mailbox]) -> None:
    for box in boxes:
        box.wake()
