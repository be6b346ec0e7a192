"""The private memory pool of captured graphs, emulated: what dies is reused, within and across."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from graphs._capture import memory as _memory

POISON_BYTE = 0xFF
"""NaN in every float format, -1 in signed ints."""
_GRANULE = 512


@dataclass(slots=True)
class _Block:
    memory: Tensor
    """uint8"""
    device: torch.device
    start: int
    """its address"""
    num_bytes: int
    made_by: str = ""
    user: StorageWeakRef | None = None
    """the tensor memory that lives in it now"""

    @property
    def is_free(self) -> bool:
        return self.user is None or self.user.expired()


class EmulatedPool:
    """Blocks that are given to tensors made during capture, and reused once those have died."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def take(self, like: Tensor, made_by: str) -> Tensor:
        """A tensor of pool memory, poisoned, of `like`'s shape, strides, dtype and device.

        Args:
            like: a dense tensor.
            made_by: the op that makes it, for messages.
        """
        num_bytes = _memory.span_bytes(like) if like.numel() else 1
        block = self._find(num_bytes, like.device)
        memory = block.memory.fill_(POISON_BYTE)
        flat = _memory.memory_at(block.start, num_bytes, like.device, owner=memory)
        block.user = StorageWeakRef(flat.untyped_storage())
        block.made_by = made_by
        if not like.numel():
            flat = flat[:0]
        return flat.view(like.dtype).as_strided(like.shape, like.stride(), 0)

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory lies in the pool."""
        address, device = tensor.data_ptr(), tensor.device
        for block in self._blocks:
            if 0 <= address - block.start < block.num_bytes and block.device == device:
                return True
        return False

    def living(self) -> list[str]:
        """The ops whose results are still held by someone."""
        return [block.made_by for block in self._blocks if not block.is_free]

    def poison(self) -> None:
        """Every value dies."""
        for block in self._blocks:
            block.memory.fill_(POISON_BYTE)

    def num_bytes(self) -> int:
        return sum(block.num_bytes for block in self._blocks)

    def clear(self) -> None:
        self._blocks.clear()

    def _find(self, num_bytes: int, device: torch.device) -> _Block:
        best: _Block | None = None
        for block in self._blocks:
            fits = block.num_bytes >= num_bytes and block.device == device
            if fits and (best is None or block.num_bytes < best.num_bytes) and block.is_free:
                best = block
        if best is not None:
            return best
        size = -(-num_bytes // _GRANULE) * _GRANULE
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        block = _Block(memory, device, memory.data_ptr(), size)
        self._blocks.append(block)
        return block
