"""A step's block table as FlashInfer wants it: compressed rows, the pointers on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attention_backends._interface import AttentionBatch


@dataclass(slots=True)
class Pages:
    """Compressed rows of block ids. Host tensors are this step's own: plans copy them later."""

    query_start: Tensor
    """[R+1] int32, host"""
    start: Tensor
    """[R+1] int32, host: row r has indices start[r] .. start[r+1]"""
    indices: Tensor
    """[start[R]] int32, device: block ids"""
    last_len: Tensor
    """[R] int32, host: tokens in each row's last block; 0 where a row is empty"""

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int) -> Pages:
        """Builds the indices from what is on the device; the host waits for nothing."""
        lens = batch.seq_lens_cpu
        counts = -(-lens // block_size)
        start = np.zeros(len(lens) + 1, np.int32)
        np.cumsum(counts, out=start[1:])
        last = (lens - np.maximum(counts - 1, 0) * block_size).astype(np.int32)
        return cls(
            # copied: the host arrays may be pinned staging, which the next step overwrites
            query_start=torch.from_numpy(batch.query_start_loc_cpu.astype(np.int32, copy=True)),
            start=torch.from_numpy(start),
            indices=_flatten(batch, block_size, int(start[-1])),
            last_len=torch.from_numpy(last),
        )


def _flatten(batch: AttentionBatch, block_size: int, total: int) -> Tensor:
    """The entries of each row that hold keys, `total` in all; a row longer than the table (the tail
    of padding tokens may be) repeats its last entry, which is the null block."""
    counts = (batch.seq_lens.long() + (block_size - 1)) // block_size
    rows = torch.repeat_interleave(counts, output_size=total)  # the size said: nothing is read
    columns = torch.arange(total, device=rows.device) - (counts.cumsum(0) - counts)[rows]
    return batch.block_table[rows, columns.clamp_(max=batch.block_table.shape[1] - 1)]
