"""Gated activations; twins in `runtime.ops.activation`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from runtime.ops.triton_ops import _kernels
from runtime.ops.triton_ops._launch import FUSED, TILE


@wrap_torch_function(lambda gate_up: (gate_up,))
def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `runtime.ops.silu_and_mul`."""
    num_rows, width = gate_up.shape
    inner = width // 2
    out = torch.empty((num_rows, inner), dtype=gate_up.dtype, device=gate_up.device)
    if not num_rows:
        return out
    assert gate_up.stride(1) == 1, "rows are dense"
    _kernels.gated[(num_rows, -(-inner // TILE))](
        gate_up, out, inner, gate_up.stride(0), out.stride(0), BLOCK=TILE, num_warps=4, **FUSED
    )
    return out
