"""The norm of each head and its rotation as one op."""

from __future__ import annotations

from torch import Tensor

from runtime.ops.norm import head_rms_norm
from runtime.ops.rotary import Rotation, rotary


def norm_rotary(x: Tensor, weight: Tensor | None, eps: float, turn: Rotation) -> Tensor:
    """Norm every head, where there is a weight, and rotate it.

    Args:
        x: [T, H, D]; any strides. q and k heads go together. A kernel may write over it.
        weight: [H, D], see `head_rms_norm`, or None.
        eps: of the norm.
        turn: the step's rotation.

    Returns:
        [T, H, D] in x's type; x itself where it was written over.
    """
    return rotary(x if weight is None else head_rms_norm(x, weight, eps), turn)
