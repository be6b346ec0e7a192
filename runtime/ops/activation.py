"""Gated activations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the fused projection, as a new tensor.

    Args:
        gate_up: [T, 2 * I], gate first.

    Returns:
        [T, I].
    """
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)
