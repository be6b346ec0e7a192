"""Tile sizes and compile-time constants of `triton_paged`'s kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch

from attention_backends._interface import AttentionShape

FUSED = {"enable_fp_fusion": True}
"""Multiply-add in one rounding; said aloud, because Triton's default is about to change."""


class Tiles(NamedTuple):
    """Tile sizes and launch options of one kernel."""

    rows: int
    """tokens x heads of a group"""
    keys: int
    num_warps: int
    num_stages: int


def group_of(shape: AttentionShape) -> int:
    return shape.num_q_heads // shape.num_kv_heads


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def padded_dim(shape: AttentionShape) -> int:
    return max(16, power_of_two(shape.head_dim))


def ragged_tiles(shape: AttentionShape) -> Tiles:
    """Fits 99 KiB of shared memory (sm_86, sm_89): two stages of K and V beside the queries."""
    dim = padded_dim(shape)
    group = power_of_two(group_of(shape))
    if shape.dtype == torch.float32:  # no tensor cores: what bounds the tile is registers
        return Tiles(max(group, 32 if dim <= 64 else 16), 32 if dim <= 64 else 16, 4, 2)
    if dim > 128:
        return Tiles(rows=64, keys=32, num_warps=4, num_stages=2)
    return Tiles(rows=128, keys=64, num_warps=8, num_stages=2)


def decode_tiles(shape: AttentionShape) -> Tiles:
    dim = padded_dim(shape)
    rows = max(16, power_of_two(group_of(shape)))
    if shape.dtype == torch.float32:
        return Tiles(rows, keys=32 if dim <= 64 else 16, num_warps=4, num_stages=2)
    return Tiles(rows, keys=32 if dim > 128 else 64, num_warps=4, num_stages=3)


def constants(shape: AttentionShape, block_size: int, tiles: Tiles) -> dict[str, object]:
    """Compile-time constants that `ragged` and `decode` share, and the launch options."""
    return {
        "GROUP": group_of(shape),
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": padded_dim(shape),
        "BLOCK_SIZE": block_size,
        "BLOCK_M": tiles.rows,
        "BLOCK_N": tiles.keys,
        "WINDOW": shape.window or 0,
        "SOFTCAP": shape.softcap,
        # tensor cores round float32 to 10 bits of mantissa unless told not to
        "PRECISION": "ieee" if shape.dtype == torch.float32 else "tf32",
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
        **FUSED,
    }


def reduce_constants(shape: AttentionShape, block_size: int) -> dict[str, object]:
    return {
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": padded_dim(shape),
        "BLOCK_SIZE": block_size,
        "BLOCK_N": decode_tiles(shape).keys,
        "WINDOW": shape.window or 0,
        **FUSED,
    }
