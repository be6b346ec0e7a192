"""Records native kernels with their arguments, to run them again as one list.

While a region is recorded no kernel runs: only addresses count. Torch ops do run, once, and are
kept between the lists. Memory that dies within the forward is used again, as in a captured graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention_backends import NativeKernel, StepList, launch
from graphs._capture import memory, rules
from graphs._keys import GraphError
from graphs._recorders.emulated_part import Op, map_tensors, storage_id, tensors_of
from graphs._recorders.emulated_pool import EmulatedPool
from graphs._recorders.watching import CallWatch, OpWatch

_UNINITIALISED = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}


class KernelPart:
    """One region: lists of kernels, and torch ops between them. It holds all that it reads."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._open: list[tuple[NativeKernel, ctypes.Structure]] = []
        self._runs: list[Callable[[], None]] = []
        self._held: list[Tensor] = []

    def add_kernel(
        self, kernel: NativeKernel, args: ctypes.Structure, held: list[Tensor], num_threads: int
    ) -> None:
        """
        Raises:
            GraphError: it wants another number of threads than the rest of the list.
        """
        if num_threads != self._num_threads:
            raise GraphError(
                f"{kernel.name} is to run with {num_threads} threads, the list it is in with "
                f"{self._num_threads}"
            )
        self._open.append((kernel, args))
        self._held += held

    def add_op(self, op: Op) -> None:
        self.seal()
        self._runs.append(lambda: _run_op(op))

    def seal(self) -> None:
        """What comes next is in another list."""
        if self._open:
            steps, num_threads = StepList(self._open), self._num_threads
            self._runs.append(lambda: steps.run(num_threads))
            self._open = []

    def check(self) -> None:
        """What it relies on, it holds."""

    def replay(self) -> None:
        for run in self._runs:
            run()

    def reset(self) -> None:
        self._runs.clear()
        self._held.clear()


class KernelRecorder:
    """See `Recorder`."""

    needs_warm_ups: ClassVar[bool] = False

    def __init__(self, device: torch.device) -> None:
        self._pool = EmulatedPool()
        self._part: KernelPart | None = None
        self._is_paused = False

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with _Calls(self), _Ops(self):
                yield
        finally:
            if was_enabled:
                gc.enable()

    @contextlib.contextmanager
    def graph(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._part = None
        living = self._pool.living()
        if living:
            raise GraphError(
                f"tensors made inside the recorded forward are still held after it (results of "
                f"{', '.join(sorted(set(living)))}): other graphs use their memory"
            )

    def begin(self) -> None:
        assert self._part is None, "a region is open"
        self._part = KernelPart(torch.get_num_threads())

    def end(self) -> KernelPart:
        assert self._part is not None, "no region is open"
        part, self._part = self._part, None
        part.seal()
        return part

    def borrow(self, tensor: Tensor) -> Tensor:
        return memory.borrow(tensor) if self._pool.owns(tensor) else tensor

    def prepare_replay(self) -> None:
        """Nothing: a region reads only what it or its inputs hold."""

    def memory_bytes(self) -> int:
        return self._pool.num_bytes()

    def reset(self) -> None:
        self._pool.clear()

    def record_launch(
        self,
        kernel: NativeKernel,
        args: ctypes.Structure,
        tensors: tuple[Tensor, ...],
        num_threads: int | None = None,
    ) -> None:
        """`launch`, not run; outside of regions nothing is noted either."""
        if self._part is None:
            return
        held = [tensor for tensor in tensors if not self._pool.owns(tensor)]
        self._part.add_kernel(kernel, args, held, num_threads or torch.get_num_threads())

    def record_op(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a torch op; inside a region note it, with its results in the pool.

        Raises:
            GraphError: what a region cannot repeat.
        """
        if self._part is None or self._is_paused:
            return func(*args, **kwargs)
        self._is_paused = True
        try:
            rules.check_op(func, args, kwargs)
            return self._record(self._part, func, args, kwargs)
        finally:
            self._is_paused = False

    def _record(self, part: KernelPart, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name
        results = func(*args, **kwargs)
        aliased = {storage_id(tensor) for tensor in tensors_of((args, kwargs))}
        outputs: list[Tensor | None] = []

        def place(result: Tensor) -> Tensor:
            if storage_id(result) in aliased:
                outputs.append(None)
                return result
            placed = self._pool.take(result, name)
            outputs.append(memory.borrow(placed))
            return placed

        placed = map_tensors(place, results)
        is_view = not func._schema.is_mutable and all(output is None for output in outputs)
        if not is_view and name not in _UNINITIALISED:
            frozen_args, frozen_kwargs = map_tensors(self.borrow, (args, kwargs))
            part.add_op(Op(func, frozen_args, frozen_kwargs, outputs))
        return placed


class _Calls(CallWatch):
    """Sees the launches, which are no ops."""

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is launch:
            return self._recorder.record_launch(*args, **kwargs)
        if func is not Tensor.data_ptr:
            rules.check_call(func)
        if isinstance(func, types.FunctionType) and not func.__module__.startswith("torch"):
            with self:  # the function itself: as it is called, it would come back here
                return inspect.unwrap(func)(*args, **kwargs)
        return func(*args, **kwargs)


class _Ops(OpWatch):
    def __torch_dispatch__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.record_op(func, args, kwargs or {})


def _run_op(op: Op) -> None:
    results = tensors_of(op.func(*op.args, **op.kwargs))
    for output, result in zip(op.outputs, results, strict=True):
        if output is not None:
            output.copy_(result)
