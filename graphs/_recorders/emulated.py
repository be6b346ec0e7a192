"""Capture without a GPU: the torch ops of a region, run again with the arguments of the capture.

What a real capture makes of a forward is kept: Python runs once, ints are frozen, addresses are
frozen, memory that dies is reused, and every value of the pool dies at the next replay. What a
real capture forbids is refused with the reason.
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from graphs._capture import memory, rules
from graphs._keys import GraphError
from graphs._recorders.emulated_part import (
    EmulatedPart,
    Op,
    leaves_of,
    map_tensors,
    storage_id,
    tensors_of,
)
from graphs._recorders.emulated_pool import EmulatedPool
from graphs._recorders.watching import CallWatch, OpWatch

_UNINITIALISED = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}


_CONSTANTS = (Tensor, bool, int, float, complex, str, type(None), torch.dtype, torch.device)


class EmulatedRecorder:
    """Records ops into parts.

    Args:
        device: where the forward runs; a tensor made elsewhere would be a copy to or from the host.
    """

    needs_warm_ups: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = EmulatedPool()
        self._part: EmulatedPart | None = None
        self._last_part: EmulatedPart | None = None
        self._is_paused = False

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()

    @contextlib.contextmanager
    def graph(self) -> Iterator[None]:
        try:
            with Calls(self), Ops(self):
                yield
        finally:
            self._part = self._last_part = None
        self._refuse_living()
        self._pool.poison()

    def begin(self) -> None:
        assert self._part is None, "a region is open"
        self._part = EmulatedPart()

    def end(self) -> EmulatedPart:
        assert self._part is not None, "no region is open"
        self._last_part, self._part = self._part, None
        return self._last_part

    def borrow(self, tensor: Tensor) -> Tensor:
        assert self._last_part is not None, "only between regions"
        return self._freeze(tensor, self._last_part, "cut")

    def prepare_replay(self) -> None:
        """What any earlier replay left in the pool is gone."""
        self._pool.poison()

    def memory_bytes(self) -> int:
        return self._pool.num_bytes()

    def reset(self) -> None:
        self._pool.clear()

    @property
    def is_recording(self) -> bool:
        return self._part is not None and not self._is_paused

    def record_op(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Run a torch op and note it.

        Raises:
            GraphError: a capture forbids it.
        """
        with self._paused():
            rules.check_op(op, args, kwargs)
            return self._record(op, op._schema.name, args, kwargs, op(*args, **kwargs))

    def record_launch(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function of ours and note it as one op, however it reaches the memory of its
        arguments.

        Raises:
            GraphError: an argument is no tensor and no constant, so that it cannot be frozen.
        """
        name = f"{func.__module__}.{func.__name__}"
        for leaf in leaves_of((args, kwargs)):
            if not isinstance(leaf, _CONSTANTS):
                raise GraphError(
                    f"{name} inside a captured region is given a {type(leaf).__name__}, which can "
                    "change after the capture; give it tensors and numbers"
                )
        with self._paused():
            return self._record(func, name, args, kwargs, func(*args, **kwargs))

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Torch calls of the recorder itself are not the region's."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _record(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: Any, results: Any
    ) -> Any:
        """The results, with fresh ones moved into the pool."""
        part = self._part
        assert part is not None, "no region is open"
        inputs = tensors_of((args, kwargs))
        aliased = {storage_id(tensor) for tensor in inputs}
        outputs: list[Tensor | None] = []

        def place(result: Tensor) -> Tensor:
            is_alias = storage_id(result) in aliased
            placed = result if is_alias else self._place(result, name)
            outputs.append(None if is_alias else memory.borrow(placed))
            return placed

        frozen_args, frozen_kwargs = map_tensors(
            lambda t: self._freeze(t, part, name), (args, kwargs)
        )
        placed = map_tensors(place, results)
        if not self._only_aliases(func, outputs) and name not in _UNINITIALISED:
            part.ops.append(Op(func, frozen_args, frozen_kwargs, outputs))
        return placed

    def _place(self, result: Tensor, name: str) -> Tensor:
        if result.device.type != self._device.type:
            raise GraphError(
                f"{name} inside a captured region makes a tensor on {result.device}; the forward "
                f"runs on {self._device}"
            )
        placed = self._pool.take(result, name)
        if name not in _UNINITIALISED:
            placed.copy_(result)
        return placed

    @staticmethod
    def _only_aliases(func: Any, outputs: list[Tensor | None]) -> bool:
        """A view: its captured results need no work at a replay."""
        schema = getattr(func, "_schema", None)
        return (
            schema is not None
            and not schema.is_mutable
            and not any(output is not None for output in outputs)
        )

    def _freeze(self, tensor: Tensor, part: EmulatedPart, name: str) -> Tensor:
        """The argument as a replay sees it: an address, which keeps nothing alive."""
        return memory.borrow(tensor) if self._pool.owns(tensor) else part.freeze(tensor, name)

    def _refuse_living(self) -> None:
        living = self._pool.living()
        if living:
            gc.collect()
            living = self._pool.living()
        if living:
            raise GraphError(
                f"tensors made inside the captured forward are still held after it (results of "
                f"{', '.join(sorted(set(living)))}): replays of other graphs overwrite their "
                "memory. Make caches before the capture; give tensors that an eager part needs to "
                "cut as arguments"
            )


class Calls(CallWatch):
    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._recorder.is_recording:
            return func(*args, **kwargs)
        rules.check_call(func)
        if isinstance(func, types.FunctionType) and not func.__module__.startswith("torch"):
            return self._recorder.record_launch(func, args, kwargs)
        return func(*args, **kwargs)


class Ops(OpWatch):
    def __torch_dispatch__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._recorder.is_recording:
            return func(*args, **kwargs)
        return self._recorder.record_op(func, args, kwargs)
