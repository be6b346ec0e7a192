"""CUDA graphs: one memory pool, one stream, captures that only this thread can break."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from graphs._capture import memory as _memory


class _CudaPart:
    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def check(self) -> None:
        """Addresses are checked by the pool, on what was named to it."""

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()


class CudaRecorder:
    """Captures with `torch.cuda.CUDAGraph`.

    Args:
        device: a CUDA device.
        cuda: the module that captures; tests give a strict fake of `torch.cuda`.
    """

    needs_warm_ups: ClassVar[bool] = True

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._device = device
        self._stream = cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()
        self._open: Any = None

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        current = self._cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with self._cuda.stream(self._stream):
                yield
        finally:
            if was_enabled:
                gc.enable()
            current.wait_stream(self._stream)

    @contextlib.contextmanager
    def graph(self) -> Iterator[None]:
        self._cuda.synchronize(self._device)
        self._cuda.empty_cache()
        try:
            yield
        except BaseException:
            self._abort()
            raise
        self._cuda.synchronize(self._device)

    def begin(self) -> None:
        graph = self._cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._open = graph

    def end(self) -> _CudaPart:
        graph, self._open = self._open, None
        graph.capture_end()
        return _CudaPart(graph)

    def borrow(self, tensor: Tensor) -> Tensor:
        return _memory.borrow(tensor)

    def prepare_replay(self) -> None:
        """Nothing: a replay needs no preparation."""

    def memory_bytes(self) -> int:
        self._cuda.synchronize(self._device)
        self._cuda.empty_cache()
        free, total = self._cuda.mem_get_info(self._device)
        return int(total - free)

    def reset(self) -> None:
        self._cuda.synchronize(self._device)
        self._cuda.empty_cache()

    def _abort(self) -> None:
        graph, self._open = self._open, None
        if graph is None:
            return
        # The stream must leave capture mode; ending a broken capture raises once more.
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        with contextlib.suppress(RuntimeError):
            graph.reset()
