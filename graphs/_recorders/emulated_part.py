"""One captured region under emulation: its ops, and the memory from outside that they rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from graphs._capture import memory as _memory
from graphs._keys import GraphError


class Op(NamedTuple):
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    outputs: list[Tensor | None]
    """where fresh results go; None for results that alias an argument"""


class Static(NamedTuple):
    """Memory from outside the pool that a region reads or writes."""

    storage: StorageWeakRef
    data_ptr: int
    used_by: str


class EmulatedPart:
    """The ops of one region."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.statics: dict[int, Static] = {}

    def freeze(self, tensor: Tensor, name: str) -> Tensor:
        """Memory from outside as a replay sees it: an address, which keeps nothing alive.

        Args:
            tensor: an argument of an op.
            name: the op, for messages.
        """
        if tensor.layout is not torch.strided or tensor.is_mkldnn:
            return tensor  # opaque weights have no address
        if tensor.numel() == 0:
            return _memory.borrow(tensor)
        if tensor.dim() == 0:
            return tensor  # a number that torch wrapped, which nobody else holds
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.statics:
            self.statics[key] = Static(StorageWeakRef(storage), storage.data_ptr(), name)
        return _memory.borrow(tensor)

    def check(self) -> None:
        for static in self.statics.values():
            storage = torch.UntypedStorage._new_with_weak_ptr(static.storage.cdata)
            if storage is None:
                raise GraphError(
                    f"memory that {static.used_by} was captured over has been freed: a buffer was "
                    "replaced instead of being written in place"
                )
            if storage.data_ptr() != static.data_ptr:
                raise GraphError(
                    f"memory that {static.used_by} was captured over has moved: a buffer was "
                    "resized instead of being written in place"
                )

    def replay(self) -> None:
        for op in self.ops:
            results = tensors_of(op.func(*op.args, **op.kwargs))
            for output, result in zip(op.outputs, results, strict=True):
                if output is not None:
                    output.copy_(result)

    def reset(self) -> None:
        self.ops.clear()
        self.statics.clear()


def map_tensors(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The value with fn applied to every tensor in it."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map_tensors(fn, item) for item in value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(fn, item) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(fn, item) for key, item in value.items()}
    return value


def leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor in the value, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, value)
    return found


def storage_id(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_mkldnn:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)
