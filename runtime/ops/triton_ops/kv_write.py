"""Writing a step's keys and values into the paged cache; twin in `runtime.ops.kv_write`."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import wrap_torch_function

from attention_backends import LayerKV
from runtime.ops.triton_ops import _kernels
from runtime.ops.triton_ops._launch import FUSED, power_of_two


@wrap_torch_function(lambda k, v, kv, slot_mapping: (k, v, *kv, slot_mapping))
def write_kv(k: Tensor, v: Tensor, kv: LayerKV, slot_mapping: Tensor) -> None:
    """See `runtime.ops.write_kv`."""
    num_tokens, num_heads, head_dim = k.shape
    if not num_tokens:
        return
    assert kv.k.stride() == kv.v.stride(), "K and V have one layout"
    block_heads, block_d = power_of_two(num_heads), power_of_two(head_dim)
    _kernels.kv_rows[(num_tokens,)](
        k,
        v,
        kv.k,
        kv.v,
        slot_mapping,
        num_heads,
        *k.stride(),
        *v.stride(),
        *kv.k.stride(),
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_HEADS=block_heads,
        BLOCK_SIZE=kv.k.shape[1],
        num_warps=min(8, max(1, block_heads * block_d // 256)),
        **FUSED,
    )
