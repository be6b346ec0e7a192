"""What the fakes share: checks, and calls that can be replayed as a captured graph would."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class KernelError(RuntimeError):
    """What the real library would refuse, or silently get wrong."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise KernelError(message)


def require_int32(tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
    require(tensor.dtype == torch.int32, f"{name} must be int32, is {tensor.dtype}")
    require(tuple(tensor.shape) == shape, f"{name} must be {shape}, is {tuple(tensor.shape)}")


@dataclass
class Call:
    """A launch: tensors by reference, everything else by value, as a captured graph holds it."""

    function: Callable[..., Any]
    arguments: dict[str, Any]

    def replay(self) -> Any:
        return self.function(**self.arguments)

    def frozen(self) -> dict[str, Any]:
        """Addresses and values that a later launch into the same graph must have."""
        return {
            name: (value.data_ptr(), value.shape, value.stride())
            if isinstance(value, Tensor)
            else value
            for name, value in self.arguments.items()
        }


class Recorder(list[Call]):
    """Launches, newest last."""

    def recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def launch(**arguments: Any) -> Any:
            self.append(Call(function, arguments))
            return function(**arguments)

        return launch
