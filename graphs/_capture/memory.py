"""Tensors over memory that they do not own."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


class _DeviceBytes:
    """Bytes of a CUDA device as the array interface describes them."""

    def __init__(self, address: int, num_bytes: int, owner: Tensor | None) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


def memory_at(
    address: int, num_bytes: int, device: torch.device, owner: Tensor | None = None
) -> Tensor:
    """A uint8 tensor [num_bytes] over memory that the owner, or somebody else, keeps alive.

    Args:
        owner: kept for as long as the tensor lives.
    """
    if device.type == "cpu":
        buffer = (ctypes.c_char * num_bytes).from_address(address)
        buffer.owner = owner  # type: ignore[attr-defined]
        return torch.frombuffer(buffer, dtype=torch.uint8)
    return torch.as_tensor(_DeviceBytes(address, num_bytes, owner), device=device)


def span_bytes(tensor: Tensor) -> int:
    """Bytes from the tensor's first element to its last one."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def borrow(tensor: Tensor) -> Tensor:
    """A tensor of the same memory, shape and strides whose life does not keep that memory alive."""
    if tensor.numel() == 0:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
    flat = memory_at(tensor.data_ptr(), span_bytes(tensor), tensor.device)
    return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), 0)
