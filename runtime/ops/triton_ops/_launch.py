"""What the launches share."""

from __future__ import annotations

from torch import Tensor

from runtime.ops.rotary import Rotation
from runtime.ops.triton_ops import _kernels

FUSED = {"enable_fp_fusion": True}
"""Multiply-add in one rounding; said aloud, because Triton's default is about to change."""

TILE = 1024
"""Elements of a program that handles a part of a token."""


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n, from 1 up."""
    return 1 << max(n - 1, 0).bit_length()


def launch_heads(
    x: Tensor, weight: Tensor | None, eps: float, turn: Rotation | None, out: Tensor
) -> None:
    """Norm (given a weight) and rotate (given a turn) x [T, H, D] into out [T, H, D]."""
    num_tokens, num_heads, dim = x.shape
    if not num_tokens:
        return
    assert x.stride(2) == out.stride(2) == 1, "heads are dense"
    assert weight is None or (weight.shape == (num_heads, dim) and weight.stride(1) == 1)
    half = dim // 2
    assert dim == 2 * half, "an odd head has no halves"
    block_half = power_of_two(half)
    block_heads = min(power_of_two(num_heads), max(1, TILE // (2 * block_half)))
    _kernels.heads[(num_tokens, -(-num_heads // block_heads))](
        x,
        x if weight is None else weight,
        x if turn is None else turn.cos,
        x if turn is None else turn.sin,
        out,
        num_heads,
        eps,
        *x.stride()[:2],
        0 if weight is None else weight.stride(0),
        0 if turn is None else turn.cos.stride(0),
        *out.stride()[:2],
        HALF=half,
        BLOCK_HALF=block_half,
        BLOCK_HEADS=block_heads,
        HAS_NORM=weight is not None,
        HAS_TURN=turn is not None,
        num_warps=2,  # 8 values of each half a thread: 16 bytes a load
        **FUSED,
    )
