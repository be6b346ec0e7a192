"""Root-mean-square norms; twins in `runtime.ops.norm`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from runtime.ops.triton_ops import _kernels
from runtime.ops.triton_ops._launch import FUSED, launch_heads, power_of_two


@wrap_torch_function(lambda x, weight, eps: (x, weight))
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `runtime.ops.rms_norm`."""
    return _norm_rows(x, None, weight, eps)


@wrap_torch_function(lambda x, residual, weight, eps: (x, residual, weight))
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `runtime.ops.add_rms_norm`."""
    return _norm_rows(x, residual, weight, eps)


@wrap_torch_function(lambda x, weight, eps: (x, weight))
def head_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `runtime.ops.head_rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch_heads(x, weight, eps, None, out)
    return out


def _norm_rows(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    num_rows, hidden = x.shape
    out = torch.empty((num_rows, hidden), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    assert x.stride(1) == 1, "rows are dense"
    assert residual is None or residual.stride(1) == 1, "rows are dense"
    block = power_of_two(hidden)
    _kernels.norm_rows[(num_rows,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        hidden,
        eps,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **FUSED,
    )
    return out
