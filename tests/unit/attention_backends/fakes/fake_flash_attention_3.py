"""`flash_attn_interface` of tokenspeed-fa3, the part that is called.

Sources of the rules: hopper/flash_api.cpp (checks, rows beyond cu_seqlens_q) and the mainloop,
which multiplies the probability 0 of keys behind the last one by whatever V holds there.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from tests.unit.attention_backends.fakes.recording import Recorder, require, require_int32
from tests.unit.attention_backends.paging import paged_reference

KEY_TILE = 128


def make_module() -> ModuleType:
    module = ModuleType("flash_attn_interface")
    module.calls = Recorder()
    module.flash_attn_with_kvcache = module.calls.recorded(flash_attn_with_kvcache)
    return module


def make_config(**disabled: bool) -> ModuleType:
    """`flash_attn_config`: what a build leaves out, by feature name."""
    module = ModuleType("flash_attn_config")
    flags = {f"FLASHATTENTION_DISABLE_{name}": off for name, off in disabled.items()}
    module.CONFIG = {"build_flags": flags}
    return module


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    sinks=None,
) -> Tensor:
    unused = (k, v, qv, rotary_cos, cache_batch_idx, cache_leftpad, cu_seqlens_k_new, sinks)
    require(all(argument is None for argument in unused), "not modelled")
    require(scheduler_metadata is None, "metadata is not modelled: let the kernel compute it")
    require(q.dtype in (torch.float16, torch.bfloat16), f"q is {q.dtype}")
    require(k_cache.dtype == v_cache.dtype == q.dtype, "q, k and v must share a dtype")
    require(q.shape[-1] % 8 == 0, "head_dim must be a multiple of 8")
    require(q.shape[-1] <= 256, "head_dim is above 256")
    require(q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1, "last dim contiguous")
    batch = page_table.shape[0]
    require_int32(page_table, "page_table", (batch, page_table.shape[1]))
    require(page_table.stride(-1) == 1, "page_table must be contiguous in its last dim")
    require_int32(cache_seqlens, "cache_seqlens", (batch,))
    require_int32(cu_seqlens_q, "cu_seqlens_q", (batch + 1,))
    require(cu_seqlens_q.is_contiguous(), "cu_seqlens_q must be contiguous")
    require(cache_seqlens.is_contiguous(), "cache_seqlens must be contiguous")
    require(isinstance(max_seqlen_q, int), "max_seqlen_q is required with cu_seqlens_q")
    require(causal, "our layers are causal")
    require(1 <= num_splits <= 256, f"num_splits {num_splits}: a bucket needs an explicit bound")
    require(window_size == (-1, -1) or window_size[1] == 0, "a causal window ends at the token")

    starts, lens = cu_seqlens_q.tolist(), cache_seqlens.tolist()
    bound = page_table.shape[1] * k_cache.shape[1]
    require(max(lens) <= bound, f"{max(lens)} keys, the page table holds {bound}")
    require(max(starts) == starts[-1] == q.shape[0], "rows that no sequence covers are undefined")
    out = paged_reference(
        q,
        k_cache,
        v_cache,
        query_starts=starts,
        key_lens=lens,
        blocks=page_table.tolist(),
        scale=softmax_scale,
        left=None if window_size[0] < 0 else window_size[0],
        softcap=softcap,
    )
    for row, length in enumerate(lens):
        out[starts[row] + max_seqlen_q : starts[row + 1]] = math.nan
        if not _tail_is_finite(v_cache, page_table[row].long(), length):
            out[starts[row] : starts[row + 1]] = math.nan
    return out.to(q.dtype)


def _tail_is_finite(v_cache: Tensor, pages: Tensor, length: int) -> bool:
    """Whether the V that shares a tile with the last key is finite."""
    size = v_cache.shape[1]
    end = min(-(-length // KEY_TILE) * KEY_TILE, len(pages) * size)
    at = torch.arange(length, end)
    return bool(v_cache[pages[at // size], at % size].isfinite().all())
