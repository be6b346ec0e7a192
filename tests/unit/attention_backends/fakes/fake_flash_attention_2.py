"""`flash_attn` 2.8.3, the part that is called.

Source of the rules: csrc/flash_attn/flash_api.cpp. What the kernels drop in silence (rows past
max_seqlen_q, keys past the bound) is dropped here too.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from tests.unit.attention_backends.fakes.recording import Recorder, require, require_int32
from tests.unit.attention_backends.paging import paged_reference


def make_module() -> ModuleType:
    module = ModuleType("flash_attn")
    module.calls = Recorder()
    module.flash_attn_with_kvcache = module.calls.recorded(flash_attn_with_kvcache)
    module.flash_attn_varlen_func = module.calls.recorded(flash_attn_varlen_func)
    return module


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
) -> Tensor:
    unused = (k, v, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, alibi_slopes)
    require(all(argument is None for argument in unused), "not modelled")
    _require_tensors(q, k_cache, v_cache, block_table)
    batch, seqlen_q = q.shape[:2]
    require(batch > 0, "batch size must be positive")
    require(seqlen_q == 1, "only decoding is modelled")
    require_int32(block_table, "block_table", (batch, block_table.shape[1]))
    require_int32(cache_seqlens, "seqlens_k", (batch,))
    require(cache_seqlens.is_contiguous(), "seqlens_k must be contiguous")
    require(causal, "our layers are causal")
    bound = block_table.shape[1] * k_cache.shape[1]
    out = paged_reference(
        q[:, 0],
        k_cache,
        v_cache,
        query_starts=range(batch + 1),
        key_lens=[min(length, bound) for length in cache_seqlens.tolist()],
        blocks=block_table.tolist(),
        scale=softmax_scale,
        left=_left(window_size, bound),
        softcap=softcap,
    )
    return out[:, None].to(q.dtype)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
) -> Tensor:
    require(dropout_p == 0, "not modelled")
    require(alibi_slopes is None, "not modelled")
    _require_tensors(q, k, v, block_table)
    batch = cu_seqlens_q.numel() - 1
    require_int32(cu_seqlens_q, "cu_seqlens_q", (batch + 1,))
    require_int32(cu_seqlens_k, "cu_seqlens_k", (batch + 1,))
    require(cu_seqlens_q.is_contiguous(), "cu_seqlens_q must be contiguous")
    require(cu_seqlens_k.is_contiguous(), "cu_seqlens_k must be contiguous")
    require_int32(block_table, "block_table", (batch, block_table.shape[1]))
    require(causal, "our layers are causal")

    starts, group = cu_seqlens_q.tolist(), q.shape[1] // k.shape[2]
    if max_seqlen_q == 1 and group > 1 and window_size == (-1, -1):
        # query heads become rows, and cu_seqlens_q is ignored
        require(q.shape[0] == batch, f"{q.shape[0]} rows for {batch} sequences of one token")
        starts = list(range(batch + 1))
    bound = block_table.shape[1] * k.shape[1]
    lens = cu_seqlens_k.diff().tolist()
    require(max(lens) <= bound, f"{max(lens)} keys, the block table holds {bound}")
    out = paged_reference(
        q,
        k,
        v,
        query_starts=starts,
        key_lens=[min(length, max_seqlen_k) for length in lens],
        blocks=block_table.tolist(),
        scale=softmax_scale,
        left=_left(window_size, max_seqlen_k),
        softcap=softcap,
    )
    for row in range(batch):
        out[starts[row] + max_seqlen_q : starts[row + 1]] = math.nan
    return out.to(q.dtype)


def _require_tensors(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor) -> None:
    require(q.dtype in (torch.float16, torch.bfloat16), f"q is {q.dtype}")
    require(k.dtype == v.dtype == q.dtype, "q, k and v must share a dtype")
    require(q.shape[-1] <= 256, "head_dim is above 256")
    require(q.shape[-1] % 8 == 0, "the whole cache would be copied to pad head_dim")
    require(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "last dim contiguous")
    require(q.shape[-2] % k.shape[2] == 0, "query heads must divide among K/V heads")
    require(k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    require(block_table.stride(-1) == 1, "block_table must be contiguous in its last dim")


def _left(window_size: tuple[int, int], bound: int) -> int | None:
    left, right = window_size
    require((left, right) == (-1, -1) or right == 0, "a causal window ends at the token")
    return None if left < 0 or left >= bound else left
