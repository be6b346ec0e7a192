"""Persistent inputs of a step: one device block of memory, host blocks of the same layout, one copy
to the device a step.

Views are made once, so every step, and every captured graph, sees the same device addresses. Two
host blocks take turns: while the device may still read one, the next step is written to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention_backends import NULL_BLOCK

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
_Sizes = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class HostViews:
    """Where `InputBatch.build` writes. Sizes are the largest ones: Tmax tokens, Rmax requests."""

    positions: Int64Array
    """[Tmax]."""
    slot_mapping: Int64Array
    """[Tmax]."""
    feed_from: Int64Array
    """[Rmax], indexes into the tokens that the step before samples."""
    feed_to: Int64Array
    """[Rmax], where they go in input_ids."""
    input_ids: Int32Array
    """[Tmax]."""
    logits_indices: Int32Array
    """[Rmax]."""
    seq_lens: Int32Array
    """[Rmax]."""
    query_start_loc: Int32Array
    """[Rmax + 1]."""
    block_table: Int32Array
    """[Rmax, M]."""


@dataclass(frozen=True, slots=True)
class DeviceViews:
    """The same fields on the device; on the CPU they share the host's memory."""

    positions: Tensor
    slot_mapping: Tensor
    feed_from: Tensor
    feed_to: Tensor
    input_ids: Tensor
    logits_indices: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    block_table: Tensor


class _Side:
    """A host block, and whether the device has read it."""

    def __init__(
        self, sizes: _Sizes, *, is_pinned: bool = False, copied: torch.cuda.Event | None = None
    ) -> None:
        self.block = torch.zeros(_num_bytes(sizes), dtype=torch.uint8, pin_memory=is_pinned)
        views = _carve(self.block, sizes)
        self.views = HostViews(**{name: view.numpy() for name, view in views.items()})
        self.used_width = 0
        self._copied = copied
        self._is_read = True

    def wait(self) -> None:
        """Until the device has read what was copied last."""
        if self._copied is not None and not self._is_read:
            self._copied.synchronize()
        self._is_read = True

    def send(self, device_block: Tensor, num_bytes: int) -> None:
        """Queue the copy of the first bytes."""
        self.copy(device_block[:num_bytes], self.block[:num_bytes])
        if self._copied is not None:
            self._copied.record()
            self._is_read = False

    @staticmethod
    def copy(to: Tensor, source: Tensor) -> None:
        to.copy_(source, non_blocking=True)


def _make_sides(sizes: _Sizes, device: torch.device) -> list[_Side]:
    """Two that take turns; one on the CPU, where the device reads it in place."""
    if device.type == "cpu":
        return [_Side(sizes)]
    return [_Side(sizes, is_pinned=True, copied=torch.cuda.Event()) for _ in range(2)]


class InputBuffers:
    """The device block and its host blocks; on the CPU they are one and the same.

    Args:
        max_tokens: Tmax, the largest padded step.
        max_reqs: Rmax, the largest padded number of requests, tail request included.
        max_blocks: M, columns of the block table.

    Attributes:
        host: views of the host block whose turn it is.
        device: views of the device block.
    """

    def __init__(
        self, max_tokens: int, max_reqs: int, max_blocks: int, device: torch.device
    ) -> None:
        sizes = {
            "positions": (torch.int64, (max_tokens,)),
            "slot_mapping": (torch.int64, (max_tokens,)),
            "feed_from": (torch.int64, (max_reqs,)),
            "feed_to": (torch.int64, (max_reqs,)),
            "input_ids": (torch.int32, (max_tokens,)),
            "logits_indices": (torch.int32, (max_reqs,)),
            "seq_lens": (torch.int32, (max_reqs,)),
            "query_start_loc": (torch.int32, (max_reqs + 1,)),
            "block_table": (torch.int32, (max_reqs, max_blocks)),
        }
        self._sides = _make_sides(sizes, device)
        self._side = self._sides[0]
        is_staged = len(self._sides) > 1
        self._device = self._side.block.to(device, copy=True) if is_staged else None
        self.host = self._side.views
        read = self._side.block if self._device is None else self._device
        self.device = DeviceViews(**_carve(read, sizes))
        self._row_bytes = 4 * max_blocks
        self._table_offset = _num_bytes(sizes) - max_reqs * self._row_bytes

    def turn(self) -> None:
        """Before a step is written: take the next host block, once the device has read it."""
        if self._device is not None:
            self._sides.reverse()
            self._side = self._sides[0]
            self._side.wait()
            self.host = self._side.views

    def copy_to_device(self, num_reqs: int) -> None:
        """One copy, up to the last used row of the block table; nothing on the CPU."""
        if self._device is not None:
            self._side.send(self._device, self._table_offset + num_reqs * self._row_bytes)

    def device_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of each device view."""
        return ((f.name, getattr(self.device, f.name)) for f in fields(self.device))

    def feed(self, sampled: Tensor, num_fed: int) -> None:
        """Put tokens that the step before samples where `feed_to` says; what is none becomes 0.

        Args:
            sampled: [S'] int32 on the device.
        """
        tokens = sampled.index_select(0, self.device.feed_from[:num_fed]).clamp_(min=0)
        self.device.input_ids.index_copy_(0, self.device.feed_to[:num_fed], tokens)

    def set_table_width(self, width: int) -> None:
        """Say how many columns this step writes; what wider steps left behind becomes
        NULL_BLOCK."""
        if width < self._side.used_width:
            self.host.block_table[:, width : self._side.used_width] = NULL_BLOCK
        self._side.used_width = width


def _num_bytes(sizes: _Sizes) -> int:
    return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in sizes.values())


def _carve(block: Tensor, sizes: _Sizes) -> dict[str, Tensor]:
    """Views of one byte tensor, 64-bit fields first, so that each is aligned."""
    views, start = {}, 0
    for name, (dtype, shape) in sizes.items():
        end = start + dtype.itemsize * int(np.prod(shape))
        views[name] = block[start:end].view(dtype).view(shape)
        start = end
    return views
