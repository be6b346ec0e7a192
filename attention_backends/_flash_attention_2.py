"""FlashAttention 2: a call for steps of one token per request, and one for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention_backends._chip import is_installed, refuse_chip
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
)
from attention_backends._kernel_library import Call, Library, open_library
from attention_backends._nhd import DeviceArrays, max_kv_len, query_lens, window_size

BLOCK_SIZE_MULTIPLE = 256
MIN_KV_CLASS = 1024
DECODE_KEYWORDS = (
    "q", "k_cache", "v_cache", "cache_seqlens", "block_table", "softmax_scale", "causal",
    "window_size", "softcap",
)  # fmt: skip
MIXED_KEYWORDS = (
    "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
    "softmax_scale", "causal", "window_size", "softcap", "block_table",
)  # fmt: skip
LIBRARY = Library(
    "flash_attn",
    ("flash-attn",),
    "FlashAttention 2.6 or newer",
    (
        Call("flash_attn_with_kvcache", DECODE_KEYWORDS),
        Call("flash_attn_varlen_func", MIXED_KEYWORDS),
    ),
)


@dataclass(slots=True)
class DecodePlan2:
    """One token per request. The width of the table is the bound of keys that the kernel sees."""

    arrays: DeviceArrays
    block_table: Tensor
    """[R, width]: the first columns of the step's"""


@dataclass(slots=True)
class MixedPlan2:
    arrays: DeviceArrays
    key_start_loc: Tensor
    """[R+1] int32, prefix sum of seq_lens"""
    max_query_len: int
    """at least 2: with 1 the kernel would ignore query_start_loc"""
    max_key_len: int


Plan2 = DecodePlan2 | MixedPlan2


class FlashAttention2:
    """The calls of `flash_attn`."""

    graph: ClassVar[GraphSupport] = GraphSupport.ONE_TOKEN
    block_size_multiple: ClassVar[int] = BLOCK_SIZE_MULTIPLE
    preferred_block_size: ClassVar[int] = BLOCK_SIZE_MULTIPLE
    bucketed_kv: ClassVar[bool] = True

    def __init__(self, block_size: int) -> None:
        module = open_library(LIBRARY).module
        self._decode = module.flash_attn_with_kvcache
        self._mixed = module.flash_attn_varlen_func
        self._block_size = block_size

    @staticmethod
    def refuse(shape: AttentionShape, block_size: int, device: torch.device) -> str:
        """Why it cannot serve the shape here; "" where it can."""
        if reason := refuse_chip(device):
            return f"FlashAttention 2 {reason}"
        if not is_installed(LIBRARY.module):
            return f"{LIBRARY.module} is not installed: pip install flash-attn --no-build-isolation"
        if reason := open_library(LIBRARY).reason:
            return reason
        if block_size % BLOCK_SIZE_MULTIPLE:
            return (
                f"FlashAttention 2 needs a block size that is a multiple of "
                f"{BLOCK_SIZE_MULTIPLE}, not {block_size}"
            )
        return ""

    def plan(self, batch: AttentionBatch) -> Plan2:
        arrays = DeviceArrays.of(batch)
        longest = max_kv_len(batch, self._block_size)
        lens = query_lens(batch)
        if bool((lens == 1).all()):
            # the class of a bucket, so that the kernel splits keys as a captured step does
            return self._decode_plan(arrays, kv_class(longest))
        key_start_loc = torch.zeros_like(arrays.query_start_loc)
        key_lens = arrays.seq_lens.clamp(max=longest)
        torch.cumsum(key_lens, 0, dtype=torch.int32, out=key_start_loc[1:])
        return MixedPlan2(arrays, key_start_loc, max(2, int(lens.max())), longest)

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> DecodePlan2:
        if bucket.kind != "decode" or bucket.num_tokens != bucket.num_reqs:
            raise ValueError(f"flash_attention: FlashAttention 2 cannot be captured for {bucket}")
        plan = self._decode_plan(DeviceArrays.of(batch), bucket.kv_class)
        self._check_bound(plan, batch)
        return plan

    def refresh(self, plan: Plan2, batch: AttentionBatch) -> None:
        assert isinstance(plan, DecodePlan2)
        self._check_bound(plan, batch)
        plan.arrays.load(batch)

    def attend(
        self, shape: AttentionShape, q: Tensor, kv: LayerKV, out: Tensor, plan: Plan2
    ) -> None:
        if isinstance(plan, DecodePlan2):
            result = self._decode(
                q=q.unsqueeze(1),
                k_cache=kv.k,
                v_cache=kv.v,
                cache_seqlens=plan.arrays.seq_lens,
                block_table=plan.block_table,
                softmax_scale=shape.scale,
                causal=True,
                window_size=window_size(shape.window),
                softcap=shape.softcap,
            ).squeeze(1)
        else:
            result = self._mixed(
                q=q,
                k=kv.k,
                v=kv.v,
                cu_seqlens_q=plan.arrays.query_start_loc,
                cu_seqlens_k=plan.key_start_loc,
                max_seqlen_q=plan.max_query_len,
                max_seqlen_k=plan.max_key_len,
                softmax_scale=shape.scale,
                causal=True,
                window_size=window_size(shape.window),
                softcap=shape.softcap,
                block_table=plan.arrays.block_table,
            )
        out.copy_(result)

    def _decode_plan(self, arrays: DeviceArrays, bound: int) -> DecodePlan2:
        """`bound`: tokens; 0 is whatever the table holds."""
        width = arrays.block_table.shape[1]
        if bound:
            width = min(width, -(-bound // self._block_size))
        return DecodePlan2(arrays, arrays.block_table[:, :width])

    def _check_bound(self, plan: DecodePlan2, batch: AttentionBatch) -> None:
        bound = plan.block_table.shape[1] * self._block_size
        longest = int(batch.seq_lens_cpu.max(initial=0))
        if longest > bound:
            raise ValueError(
                f"flash_attention: a request has {longest} tokens, its bucket reads {bound}"
            )
        if not bool((query_lens(batch) == 1).all()):
            raise ValueError("flash_attention: each row of a decode bucket has one query token")


def kv_class(longest: int) -> int:
    """The power of two, from 1024 up, that bounds `longest` tokens."""
    return max(MIN_KV_CLASS, 1 << max(longest - 1, 0).bit_length())
