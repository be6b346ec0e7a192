"""Rotary positions, alone or fused with the norm of the heads; twins in `runtime.ops.rotary`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from runtime.ops.rotary import Rotation
from runtime.ops.triton_ops._launch import launch_heads


@wrap_torch_function(lambda x, turn: (x, *turn))
def rotary(x: Tensor, turn: Rotation) -> Tensor:
    """See `runtime.ops.rotary`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch_heads(x, None, 0.0, turn, out)
    return out


@wrap_torch_function(lambda x, turn, weight, eps: (x, *turn, weight))
def norm_and_rotary(x: Tensor, turn: Rotation, weight: Tensor | None, eps: float) -> Tensor:
    """See `runtime.ops.norm_and_rotary`; it writes over `x`, and returns it."""
    launch_heads(x, weight, eps, turn, x)
    return x
