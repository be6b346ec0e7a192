"""A strict stand-in for `torch.cuda`: refuses what CUDA refuses, and replays on the CPU.

What a graph computes is recorded by the emulation's op recorder; streams, pools, the order of
calls and what a capture forbids are checked here.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from graphs._recorders.emulated import Calls, EmulatedRecorder, Ops
from graphs._recorders.emulated_part import EmulatedPart


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.refuse_capturing("wait_stream")
        self._cuda.log.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._part: EmulatedPart | None = None
        self._stack: contextlib.ExitStack | None = None
        self.is_reset = False

    def capture_begin(self, *, pool: object, capture_error_mode: str) -> None:
        cuda = self._cuda
        cuda.refuse_capturing("capture_begin")
        if self._part is not None or self.is_reset:
            raise RuntimeError("a CUDAGraph is captured once")
        if cuda.current is cuda.default:
            raise RuntimeError("capture must be on a non-default stream")
        if gc.isenabled():
            raise RuntimeError("the garbage collector could free CUDA memory during the capture")
        cuda.captures.append((pool, cuda.current, capture_error_mode))
        cuda.capturing = self
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(Calls(cuda.ops))
        self._stack.enter_context(Ops(cuda.ops))
        cuda.ops.begin()

    def capture_end(self) -> None:
        if self._cuda.capturing is not self or self._stack is None:
            raise RuntimeError("not capturing")
        self._cuda.capturing = None
        self._part = self._cuda.ops.end()
        self._stack.close()
        if self._cuda.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self._cuda.free -= 1 << 20

    def replay(self) -> None:
        self._cuda.refuse_capturing("replay")
        if self._part is None or self.is_reset:
            raise RuntimeError("nothing to replay")
        self._cuda.replays.append(self)
        self._part.check()
        self._part.replay()

    def reset(self) -> None:
        self._cuda.refuse_capturing("reset")
        self.is_reset = True


class FakeCuda:
    """The part of `torch.cuda` that the recorder uses; anything else is an AttributeError."""

    def __init__(self) -> None:
        self.ops = EmulatedRecorder(torch.device("cpu"))
        self.default = FakeStream(self, "default")
        self.current = self.default
        self.capturing: FakeGraph | None = None
        self.broken = False
        """a capture that has met an error raises at its end"""
        self.log: list[str] = []
        self.captures: list[tuple[object, FakeStream, str]] = []
        self.replays: list[FakeGraph] = []
        self.graphs: list[FakeGraph] = []
        self.num_pools = 0
        self.free = 1 << 30

    def refuse_capturing(self, what: str) -> None:
        if self.capturing is not None:
            self.broken = True
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802
        return FakeStream(self, "capture")

    def CUDAGraph(self) -> FakeGraph:  # noqa: N802
        self.graphs.append(FakeGraph(self))
        return self.graphs[-1]

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph_pool_handle(self) -> tuple[int, int]:
        self.num_pools += 1
        return (0, self.num_pools)

    def synchronize(self, device: torch.device) -> None:
        self.refuse_capturing("synchronize")
        self.log.append("synchronize")

    def empty_cache(self) -> None:
        self.refuse_capturing("empty_cache")
        self.log.append("empty_cache")

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        self.refuse_capturing("mem_get_info")
        return self.free, 1 << 31
