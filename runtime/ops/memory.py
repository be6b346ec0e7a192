"""One stretch of memory for all packed weights, on huge pages where the system grants them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_backends import lazy_zeros

ALIGNMENT_BYTES = 64


class WeightMemory:
    """Hands out aligned parts of one zeroed stretch, in order; each part keeps it alive.

    Args:
        num_bytes: the sum of `size_of` over what will be taken.
    """

    def __init__(self, num_bytes: int) -> None:
        self._bytes = lazy_zeros((num_bytes,), torch.uint8)
        self._used = 0

    @staticmethod
    def size_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Bytes that a part takes."""
        num_bytes = math.prod(shape) * dtype.itemsize
        return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next part, zeroed."""
        size = self.size_of(shape, dtype)
        assert self._used + size <= len(self._bytes), "more is taken than was asked for"
        part = self._bytes[self._used : self._used + size].view(dtype)
        self._used += size
        return part[: math.prod(shape)].view(shape)
