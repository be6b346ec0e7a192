"""Persistent inputs of a step: one host block of memory, one device block, one copy between them.

Views of both are made once, so every step, and every captured graph, sees the same addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention_backends import NULL_BLOCK

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class HostViews:
    """Where `InputBatch.build` writes. Sizes are the largest ones: Tmax tokens, Rmax requests."""

    positions: Int64Array
    """[Tmax]."""
    slot_mapping: Int64Array
    """[Tmax]."""
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
    input_ids: Tensor
    logits_indices: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    block_table: Tensor


class InputBuffers:
    """The one staging block.

    Args:
        max_tokens: Tmax, the largest padded step.
        max_reqs: Rmax, the largest padded number of requests, tail request included.
        max_blocks: M, columns of the block table.
    """

    def __init__(
        self, max_tokens: int, max_reqs: int, max_blocks: int, device: torch.device
    ) -> None:
        sizes = {
            "positions": (torch.int64, (max_tokens,)),
            "slot_mapping": (torch.int64, (max_tokens,)),
            "input_ids": (torch.int32, (max_tokens,)),
            "logits_indices": (torch.int32, (max_reqs,)),
            "seq_lens": (torch.int32, (max_reqs,)),
            "query_start_loc": (torch.int32, (max_reqs + 1,)),
            "block_table": (torch.int32, (max_reqs, max_blocks)),
        }
        nbytes = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in sizes.values())
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._device = self._host.to(device, copy=True) if device.type != "cpu" else self._host
        self._copied = torch.cuda.Event() if on_gpu else None
        self._copy_pending = False

        host_views = _carve(self._host, sizes)
        self.host = HostViews(**{name: view.numpy() for name, view in host_views.items()})
        self.device = DeviceViews(**_carve(self._device, sizes))
        self._table_offset = nbytes - host_views["block_table"].nbytes
        self._row_bytes = 4 * max_blocks
        self._used_width = 0

    def wait(self) -> None:
        """Before the host block is written again: the copy of the last step must have read it."""
        if self._copied is not None and self._copy_pending:
            self._copied.synchronize()
            self._copy_pending = False

    def copy_to_device(self, num_reqs: int) -> None:
        """One copy, up to the last used row of the block table; nothing on the CPU."""
        if self._device is self._host:
            return
        nbytes = self._table_offset + num_reqs * self._row_bytes
        self._device[:nbytes].copy_(self._host[:nbytes], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
            self._copy_pending = True

    def set_table_width(self, width: int) -> None:
        """Say how many columns this step writes; what wider steps left behind becomes
        NULL_BLOCK."""
        if width < self._used_width:
            self.host.block_table[:, width : self._used_width] = NULL_BLOCK
        self._used_width = width


def _carve(
    block: Tensor, sizes: dict[str, tuple[torch.dtype, tuple[int, ...]]]
) -> dict[str, Tensor]:
    """Views of one byte tensor, 64-bit fields first, so that each is aligned."""
    views, start = {}, 0
    for name, (dtype, shape) in sizes.items():
        end = start + dtype.itemsize * int(np.prod(shape))
        views[name] = block[start:end].view(dtype).view(shape)
        start = end
    return views
