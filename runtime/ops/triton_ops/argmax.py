"""The largest score of each row, in two launches; twin in `runtime.ops.scores`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from runtime.ops.triton_ops import _kernels
from runtime.ops.triton_ops._launch import FUSED, power_of_two

PART = 4096


@wrap_torch_function(lambda logits: (logits,))
def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `runtime.ops.argmax`."""
    num_rows, width = logits.shape
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    top = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return top, ids
    assert logits.stride(1) == 1, "rows are dense"
    num_parts = -(-width // PART)
    part_top = torch.empty((num_rows, num_parts), dtype=torch.float32, device=logits.device)
    part_ids = torch.empty((num_rows, num_parts), dtype=torch.int32, device=logits.device)
    _kernels.best_of_parts[(num_rows, num_parts)](
        logits,
        part_top,
        part_ids,
        width,
        logits.stride(0),
        num_parts,
        BLOCK=PART,
        num_warps=4,
        **FUSED,
    )
    block = power_of_two(num_parts)
    _kernels.best_of_rows[(num_rows,)](
        part_top, part_ids, top, ids, num_parts, width, BLOCK=block, num_warps=1, **FUSED
    )
    return top, ids
