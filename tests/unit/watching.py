"""What makes a host wait for its device, seen without one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")

_FROM_VALUES = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
"""Make a tensor of the host's values: elsewhere, by a copy that is waited for and no op of which is
seen."""


class WaitedError(Exception):
    """The host looked at a value of the device."""


class Watch(TorchDispatchMode):
    """Refuses what makes the host wait for a device, and notes the copies between devices.

    Args:
        device: type of the tensors that stand for the device's, such as "meta", whose values nobody
            can read; None where all do.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self._device = device
        self.uploads = 0
        self.blocking: list[str] = []
        self._makers = _Makers(self)

    def __enter__(self) -> Any:
        self._makers.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._makers.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._can_decompose():
            return self._watch_parts(func, args, kwargs)
        name = func._schema.name
        if name == "aten::_to_copy" and "device" in kwargs:
            self.note(kwargs["device"], args[0], kwargs.get("non_blocking", False))
        elif name == "aten::copy_":
            self.note(args[0].device, args[1], kwargs.get("non_blocking", (*args, False)[2]))
        else:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            devices = {tensor.device.type for tensor in tensors}
            if self._device is None or self._device in devices:
                self._refuse(name, args, tensors)
        return func(*args, **kwargs)

    def _watch_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Under inference mode ops such as `to` come whole, with their waits and copies inside."""
        super().__enter__()
        try:
            return func.decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)

    def note(self, device: torch.device, source: Tensor, non_blocking: bool) -> None:
        """A copy, if it is one between devices."""
        if torch.device(device).type == source.device.type:
            return
        self.uploads += 1
        if not non_blocking:
            self.blocking.append(f"{source.dtype} {tuple(source.shape)}")

    def _refuse(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        if name.startswith(_WAITS):
            raise WaitedError(name)
        if name in _INDEXED:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise WaitedError(f"{name} with a mask")
        devices = {tensor.device.type for tensor in tensors if tensor.dim()}
        if len(devices) > 1:
            raise WaitedError(f"{name} reads from {devices}")


class _Makers(TorchFunctionMode):
    """Sees what no dispatch mode does: tensors that are made of values."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _FROM_VALUES and not isinstance(args[-1], Tensor):
            self._watch.note(made.device, torch.empty(made.shape, dtype=made.dtype), False)
        return made
