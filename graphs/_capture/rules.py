"""What CUDA forbids while a graph is captured, as checks on torch calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphs._keys import GraphError

_READS_OF_VALUES = {
    getattr(torch.Tensor, name): name
    for name in (
        "__array__",
        "__bool__",
        "__complex__",
        "__dlpack__",
        "__float__",
        "__index__",
        "__int__",
        "cpu",
        "item",
        "numpy",
        "tolist",
    )
}
_ADDRESSES = {torch.Tensor.data_ptr}
_MASKED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


def check_call(func: Any) -> None:
    """Refuse a torch function that hands values or addresses to the host.

    Raises:
        GraphError: names the function and what to do instead.
    """
    if func in _READS_OF_VALUES:
        name = _READS_OF_VALUES[func]
        raise GraphError(
            f"Tensor.{name} inside a captured region: it waits for the device, and the value would "
            "be frozen; read values before the forward, or cut"
        )
    if func in _ADDRESSES:
        raise GraphError(
            "Tensor.data_ptr inside a captured region: a launch that the emulation cannot see; "
            "decorate its function with torch.overrides.wrap_torch_function"
        )


def check_op(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse an op that waits for the device, takes host data, draws random numbers, or has a
    result whose shape depends on device data.

    Raises:
        GraphError: names the op and why.
    """
    name = func._schema.name
    tags = func.tags
    if name == "aten::lift_fresh":
        raise GraphError(
            "a tensor of host data (torch.tensor, torch.from_numpy) inside a captured region: it "
            "is copied from unpinned memory; make it before the forward and refresh it in place"
        )
    if name in _MASKED:
        if _has_mask(args) and not _is_masked_fill(name, args):
            raise GraphError(f"{name} with a boolean mask inside a captured region: {_SHAPES}")
        return
    if name == "aten::item" or torch.Tag.data_dependent_output in tags:
        raise GraphError(
            f"{name} inside a captured region: it reads a value back to the host, which waits for "
            "the device and freezes the value"
        )
    if torch.Tag.dynamic_output_shape in tags and kwargs.get("output_size") is None:
        raise GraphError(f"{name} inside a captured region: {_SHAPES}")
    if torch.Tag.nondeterministic_seeded in tags and "attention" not in name:
        raise GraphError(
            f"{name} inside a captured region: each replay would move the generator for the whole "
            "batch; keep random numbers outside"
        )


_SHAPES = "the shape of its result depends on device data"


def _has_mask(args: Sequence[Any]) -> bool:
    return any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )


def _is_masked_fill(name: str, args: Sequence[Any]) -> bool:
    """One mask and one value: torch fills in place, without counting."""
    return name != "aten::index" and len(args[1]) == 1 and args[2].numel() == 1
