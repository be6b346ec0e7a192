"""FlashAttention 3 on Hopper: one paged entry for chunks, decodes and any mix of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention_backends._chip import compute_capability, is_installed
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
)
from attention_backends._kernel_library import Call, Library, open_library
from attention_backends._nhd import DeviceArrays, query_lens, window_size

MAX_SPLITS = 32
MAX_SPLIT_ROWS = 2048
"""Bound of rows x splits: the kernel keeps splits * Hq * T * D float32 partial results."""
KEYWORDS = (
    "q", "k_cache", "v_cache", "cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q",
    "softmax_scale", "causal", "window_size", "softcap", "num_splits",
)  # fmt: skip
LIBRARY = Library(
    "flash_attn_interface",
    ("tokenspeed-fa3", "flash-attn-3"),
    "FlashAttention 3 with a page table",
    (Call("flash_attn_with_kvcache", KEYWORDS),),
)


@dataclass(slots=True)
class Plan3:
    arrays: DeviceArrays
    key_lens: Tensor
    """[R] int32: seq_lens, or a copy cut to what the block table holds"""
    max_query_len: int
    num_splits: int


class FlashAttention3:
    """The calls of `flash_attn_interface`; the kernel itself computes its scheduler metadata."""

    graph: ClassVar[GraphSupport] = GraphSupport.RAGGED
    block_size_multiple: ClassVar[int] = 1
    preferred_block_size: ClassVar[int] = 16
    bucketed_kv: ClassVar[bool] = False

    def __init__(self, block_size: int) -> None:
        self._attention = open_library(LIBRARY).module.flash_attn_with_kvcache
        self._block_size = block_size

    @staticmethod
    def refuse_device(device: torch.device) -> str:
        """Why it cannot serve any shape here; "" where it can serve some."""
        if compute_capability(device) != (9, 0):
            return "FlashAttention 3 needs a Hopper GPU (compute capability 9.0)"
        if not is_installed(LIBRARY.module):
            return f"{LIBRARY.module} is not installed: pip install tokenspeed-fa3 (CUDA 13)"
        return open_library(LIBRARY).reason

    @classmethod
    def refuse(cls, shape: AttentionShape, block_size: int, device: torch.device) -> str:
        """Why it cannot serve the shape here; "" where it can."""
        return cls.refuse_device(device) or _refuse_build(shape, _build_flags())

    def plan(self, batch: AttentionBatch) -> Plan3:
        max_query_len = int(query_lens(batch).max(initial=1))
        arrays = DeviceArrays.of(batch)
        key_lens = arrays.seq_lens
        if int(batch.seq_lens_cpu.max(initial=0)) > self._table_tokens(arrays):
            key_lens = key_lens.clamp(max=self._table_tokens(arrays))
        num_reqs = len(batch.seq_lens_cpu)
        return Plan3(arrays, key_lens, max_query_len, num_splits(max_query_len, num_reqs))

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> Plan3:
        max_query_len = 1 if bucket.kind == "decode" else bucket.num_tokens
        arrays = DeviceArrays.of(batch)
        key_lens = arrays.seq_lens
        if bucket.num_tokens > self._table_tokens(arrays):  # its tail may claim more keys
            key_lens = torch.empty_like(key_lens)
        splits = num_splits(max_query_len, bucket.num_reqs)
        plan = Plan3(arrays, key_lens, max_query_len, splits)
        self.refresh(plan, batch)
        return plan

    def refresh(self, plan: Plan3, batch: AttentionBatch) -> None:
        if int(query_lens(batch).max(initial=0)) > plan.max_query_len:
            raise ValueError("flash_attention: a request has more query tokens than its bucket")
        plan.arrays.load(batch)
        if plan.key_lens is not plan.arrays.seq_lens:
            limit = self._table_tokens(plan.arrays)
            torch.clamp(plan.arrays.seq_lens, max=limit, out=plan.key_lens)

    def attend(
        self, shape: AttentionShape, q: Tensor, kv: LayerKV, out: Tensor, plan: Plan3
    ) -> None:
        result = self._attention(
            q=q,
            k_cache=kv.k,
            v_cache=kv.v,
            cache_seqlens=plan.key_lens,
            page_table=plan.arrays.block_table,
            cu_seqlens_q=plan.arrays.query_start_loc,
            max_seqlen_q=plan.max_query_len,
            softmax_scale=shape.scale,
            causal=True,
            window_size=window_size(shape.window),
            softcap=shape.softcap,
            num_splits=plan.num_splits,
        )
        out.copy_(result)

    def _table_tokens(self, arrays: DeviceArrays) -> int:
        return arrays.block_table.shape[1] * self._block_size


def num_splits(max_query_len: int, num_reqs: int) -> int:
    """Upper bound of the parts that keys are split into.

    Said at every call: 0 would let host arithmetic on the step's lengths choose, and a captured
    graph would freeze its choice. One-token steps get the same bound for every count that one
    bucket serves; steps with chunks are not split.
    """
    if max_query_len > 1:
        return 1
    rows = 1 << max(num_reqs - 1, 0).bit_length()
    return max(1, min(MAX_SPLITS, MAX_SPLIT_ROWS // rows))


def _build_flags() -> dict[str, bool]:
    """What the installed build leaves out, by the names of its setup.py; {} if it does not say."""
    try:
        return dict(importlib.import_module("flash_attn_config").CONFIG["build_flags"])
    except Exception:  # older builds have no such file, and examine must not raise
        return {}


def _refuse_build(shape: AttentionShape, flags: dict[str, bool]) -> str:
    def lacks(feature: str) -> bool:
        return bool(flags.get(f"FLASHATTENTION_DISABLE_{feature}"))

    missing: Sequence[tuple[str, bool]] = (
        ("paged KV", lacks("PAGEDKV")),
        ("ragged batches", lacks("VARLEN")),
        ("soft cap", bool(shape.softcap) and lacks("SOFTCAP")),
        ("sliding windows", shape.window is not None and lacks("LOCAL")),
        ("float16", shape.dtype == torch.float16 and lacks("FP16")),
    )
    for feature, is_missing in missing:
        if is_missing:
            return f"the installed FlashAttention 3 was built without {feature}"
    sizes = [size for size in (64, 96, 128, 192, 256) if not lacks(f"HDIM{size}")]
    if not sizes or shape.head_dim > max(sizes):
        return f"the installed FlashAttention 3 was built without head_dim {shape.head_dim}"
    return ""
