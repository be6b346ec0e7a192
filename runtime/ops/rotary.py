"""Rotary positions in the half-split ("neox") layout: dimension i turns with dimension i + D/2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runtime.ops.norm import head_rms_norm


class Rotation(NamedTuple):
    """The rotation of each token of a step, shared by every layer."""

    cos: Tensor
    """[T, 1, D]"""

    sin: Tensor
    """[T, 1, D], the first half negated, so that the rotation is x * cos + swap(x) * sin."""


def rotation(
    positions: Tensor, inverse_frequencies: Tensor, scale: float, dtype: torch.dtype
) -> Rotation:
    """Cosines and sines of the positions, computed in float32.

    Args:
        positions: [T] int64.
        inverse_frequencies: [D/2] float32, radians per token.
        scale: multiplies both (yarn's attention factor), else 1.
        dtype: of the result.
    """
    angles = torch.outer(positions.to(torch.float32), inverse_frequencies)
    cos = angles.cos()
    sin = angles.sin()
    if scale != 1.0:
        cos.mul_(scale)
        sin.mul_(scale)
    return Rotation(
        torch.cat((cos, cos), -1).to(dtype).unsqueeze(1),
        torch.cat((-sin, sin), -1).to(dtype).unsqueeze(1),
    )


def rotary(x: Tensor, turn: Rotation) -> Tensor:
    """Rotate every head of every token, as a new contiguous tensor.

    Args:
        x: [T, H, D]; any strides. q and k heads may be rotated together.
        turn: the step's rotation.

    Returns:
        [T, H, D] in x's type.
    """
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * turn.cos, swapped, turn.sin)


def norm_and_rotary(x: Tensor, turn: Rotation, weight: Tensor | None, eps: float) -> Tensor:
    """Norm every head by itself where the model does that, then rotate it.

    Args:
        x: [T, H, D]; any strides. May be overwritten: only the result is to be used.
        turn: the step's rotation.
        weight: [H, D] of the head norm; None where there is none.
        eps: of the norm.

    Returns:
        [T, H, D] in x's type; may be x.
    """
    if weight is not None:
        x = head_rms_norm(x, weight, eps)
    return rotary(x, turn)
