"""What the GPU backends share: K/V layout, layers grouped by shape, arrays at fixed addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attention_backends._interface import AttentionBatch, AttentionShape, IntArray, LayerKV


def left_window(window: int | None) -> int:
    """Keys before a token that it sees: FlashAttention's and FlashInfer's left window.

    Models count the token itself (`sliding_window`), so W is W - 1 here; no window is -1.
    """
    return -1 if window is None else window - 1


def window_size(window: int | None) -> tuple[int, int]:
    """FlashAttention's (left, right), the token itself in neither; (-1, -1) is unbounded."""
    return (-1, -1) if window is None else (left_window(window), 0)


def allocate_kv(
    shapes: Sequence[AttentionShape], num_blocks: int, block_size: int, device: torch.device
) -> list[LayerKV]:
    """Zeroed K and V of every layer, [N, P, Hkv, D] each; one allocation where all layers agree."""
    kinds = {(s.num_kv_heads, s.head_dim, s.kv_dtype) for s in shapes}

    def zeros(num_layers: int, shape: AttentionShape) -> Tensor:
        sizes = (num_layers, 2, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(sizes, dtype=shape.kv_dtype, device=device)

    if len(kinds) == 1:
        return [LayerKV(layer[0], layer[1]) for layer in zeros(len(shapes), shapes[0])]
    return [LayerKV(*zeros(1, shape)[0]) for shape in shapes]


def group_shapes(shapes: Sequence[AttentionShape]) -> tuple[list[AttentionShape], list[int]]:
    """The distinct shapes, and of each layer the index of its shape among them."""
    distinct = list(dict.fromkeys(shapes))
    return distinct, [distinct.index(shape) for shape in shapes]


def query_lens(batch: AttentionBatch) -> IntArray:
    """[R] query tokens of each row, from the host arrays."""
    return np.diff(batch.query_start_loc_cpu)


def max_kv_len(batch: AttentionBatch, block_size: int) -> int:
    """The longest key sequence of the step, cut to the block table (a padding tail may be more)."""
    longest = int(batch.seq_lens_cpu.max(initial=0))
    return min(longest, batch.block_table_cpu.shape[1] * block_size)


@dataclass(slots=True)
class DeviceArrays:
    """The device arrays of one step, or of one bucket, whose graph reads these very addresses."""

    query_start_loc: Tensor
    """[R+1] int32"""
    seq_lens: Tensor
    """[R] int32"""
    block_table: Tensor
    """[R, M] int32"""

    @classmethod
    def of(cls, batch: AttentionBatch) -> DeviceArrays:
        return cls(batch.query_start_loc, batch.seq_lens, batch.block_table)

    def load(self, batch: AttentionBatch) -> None:
        """Bring a step's values to these addresses; nothing to do where it was built in them.

        Raises:
            ValueError: the step is not padded to this bucket.
        """
        _copy(self.query_start_loc, batch.query_start_loc, "query_start_loc")
        _copy(self.seq_lens, batch.seq_lens, "seq_lens")
        _copy(self.block_table, batch.block_table, "block_table")


def _copy(target: Tensor, source: Tensor, name: str) -> None:
    if target.shape != source.shape:
        sizes = f"{list(source.shape)}, the bucket has {list(target.shape)}"
        raise ValueError(f"a step must be padded to its bucket: {name} is {sizes}")
    if target.data_ptr() != source.data_ptr() or target.stride() != source.stride():
        target.copy_(source, non_blocking=True)
