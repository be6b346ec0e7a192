"""Root-mean-square norms; the mean is taken in float32 whatever the input's type."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, as a new tensor.

    Args:
        x: [T, hidden].
        weight: [hidden].
        eps: added to the mean of squares.

    Returns:
        [T, hidden] in x's type.
    """
    return functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x into `residual` in place, and return the norm of the sum as a new tensor.

    Args:
        x: [T, hidden], a block's output.
        residual: [T, hidden]; holds residual + x afterwards.
        weight: [hidden].
        eps: added to the mean of squares.

    Returns:
        [T, hidden] in x's type.
    """
    residual.add_(x)
    return functional.rms_norm(residual, weight.shape, weight, eps)


def head_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of each head by itself (Qwen3's q and k norm), as a new tensor.

    Args:
        x: [T, H, D]; any strides.
        weight: [H, D], a row for each head, so that q and k heads are normed together.
        eps: added to the mean of squares.

    Returns:
        [T, H, D] in x's type.
    """
    return functional.rms_norm(x, x.shape[-1:], None, eps) * weight
