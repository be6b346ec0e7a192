"""Paged attention in plain torch, on any device: the reference that every other backend is compared
with.

Keys and values are gathered by slot, so nothing but a request's own tokens is ever read: what lies
in unused slots, NaN included, cannot reach a result. Two paths share the arithmetic: requests with
one query token are batched by similar length (`OneTokenRows`), the others run one by one, in tiles
of query rows (`Chunk`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention_backends._host_memory import lazy_zeros
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
)
from attention_backends._torch_plan import (
    Chunk,
    KeyPlanner,
    MaskKind,
    OneTokenRows,
    group_by_length,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(slots=True)
class StepPlan:
    """Where each layer's rows and keys are; one entry per kind of mask."""

    num_tokens: int
    """Real tokens; the rows after them get zeros."""
    rows: dict[MaskKind, list[OneTokenRows]] = field(default_factory=dict)
    chunks: dict[MaskKind, list[Chunk]] = field(default_factory=dict)


class Backend:
    """See `AttentionBackend`."""

    name: ClassVar[str] = "torch_paged"

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        self._shapes = list(shapes)
        self._mask_kinds = list(dict.fromkeys(MaskKind(s.window, s.dtype) for s in shapes))
        self._block_size = block_size
        self._device = device
        self._planner = KeyPlanner(block_size, device)
        self._max_model_len = 0

    @classmethod
    def preference(cls, device: torch.device) -> int:
        return 0

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        for what, dtype in (("dtype", shape.dtype), ("kv_dtype", shape.kv_dtype)):
            if dtype not in DTYPES:
                return Support(False, f"{what} {dtype} is not one of {', '.join(map(str, DTYPES))}")
        if shape.num_q_heads % shape.num_kv_heads:
            return Support(
                False,
                f"{shape.num_q_heads} query heads cannot share {shape.num_kv_heads} K/V heads "
                "evenly",
            )
        if block_size < 1:
            return Support(False, f"a block size of {block_size} is not >= 1")
        return Support(True, graph=GraphSupport.ONE_TOKEN, host_plan=True, bucketed_kv=True)

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        """[N, P, Hkv, D], contiguous; on the CPU, memory is taken from the system at first use."""
        return [self._allocate_layer(shape, num_blocks) for shape in self._shapes]

    def plan(self, batch: AttentionBatch) -> StepPlan:
        num_reqs = batch.num_reqs
        starts = batch.query_start_loc_cpu[: num_reqs + 1].astype(np.int64)
        query_lens = np.diff(starts)
        plan = StepPlan(batch.num_tokens)
        one_token = np.flatnonzero(query_lens == 1)
        several = np.flatnonzero(query_lens > 1)
        for kind in self._mask_kinds:
            plan.rows[kind] = [
                self._planner.one_token_rows(batch, requests, kind)
                for requests in group_by_length(batch.seq_lens_cpu, one_token, kind.window)
            ]
            plan.chunks[kind] = [
                self._planner.chunk(batch, int(r), int(starts[r]), int(query_lens[r]), kind)
                for r in several
            ]
        return plan

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: StepPlan) -> None:
        shape = self._shapes[layer]
        kind = MaskKind(shape.window, shape.dtype)
        k = kv.k.view(-1, shape.num_kv_heads, shape.head_dim)
        v = kv.v.view(-1, shape.num_kv_heads, shape.head_dim)
        for rows in plan.rows[kind]:
            _attend_one_token(shape, q, k, v, out, rows)
        for chunk in plan.chunks[kind]:
            _attend_chunk(shape, q, k, v, out, chunk)
        out[plan.num_tokens :].zero_()

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        """Static arrays are made by `open_bucket`; the bytes are theirs."""
        self._max_model_len = max_model_len
        return sum(
            bucket.num_reqs * self._baked_keys(bucket, kind) * (8 + kind.dtype.itemsize)
            for bucket in buckets
            for kind in self._mask_kinds
        )

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> StepPlan:
        """Every row of the bucket at the bucket's largest number of keys.

        Raises:
            ValueError: a bucket whose requests may have more than one query token.
        """
        if bucket.kind != "decode":
            raise ValueError(f"torch_paged: {bucket.kind} graphs are not supported, only decode")
        plan = StepPlan(bucket.num_tokens)
        for kind in self._mask_kinds:
            rows = self._planner.bucket_rows(batch, self._baked_keys(bucket, kind), kind)
            plan.rows[kind], plan.chunks[kind] = [rows], []
        return plan

    def refresh(self, plan: StepPlan, batch: AttentionBatch) -> None:
        """Raises ValueError where a request has more keys than the bucket was captured for."""
        for kind, (rows,) in plan.rows.items():
            baked = rows.mask.shape[-1]
            needed = min(batch.max_seq_len, kind.window or batch.max_seq_len)
            if needed > baked:
                raise ValueError(f"torch_paged: {needed} keys in a graph captured for {baked}")
            fresh = self._planner.bucket_rows(batch, baked, kind)
            rows.slots.copy_(fresh.slots)
            rows.mask.copy_(fresh.mask)

    def _allocate_layer(self, shape: AttentionShape, num_blocks: int) -> LayerKV:
        sizes = (2, num_blocks, self._block_size, shape.num_kv_heads, shape.head_dim)
        if self._device.type == "cpu":
            return LayerKV(*lazy_zeros(sizes, shape.kv_dtype))
        return LayerKV(*torch.zeros(sizes, dtype=shape.kv_dtype, device=self._device))

    def _baked_keys(self, bucket: Bucket, kind: MaskKind) -> int:
        keys = bucket.kv_class or self._max_model_len
        return keys if kind.window is None else min(keys, kind.window)


def _attend_one_token(
    shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor, out: Tensor, rows: OneTokenRows
) -> None:
    """The query heads of a K/V head are the rows of one small matrix product."""
    G, L, Hkv, D = len(rows.tokens), rows.mask.shape[-1], shape.num_kv_heads, shape.head_dim
    queries = q.index_select(0, rows.tokens).view(G, Hkv, -1, D)
    keys = k.index_select(0, rows.slots).view(G, L, Hkv, D).transpose(1, 2)
    values = v.index_select(0, rows.slots).view(G, L, Hkv, D).transpose(1, 2)
    result = _softmax_attention(shape, queries, keys, values, rows.mask)
    out.index_copy_(0, rows.tokens, result.reshape(G, -1, D))


def _attend_chunk(
    shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor, out: Tensor, chunk: Chunk
) -> None:
    Hkv, D = shape.num_kv_heads, shape.head_dim
    group = shape.num_q_heads // Hkv
    keys = k.index_select(0, chunk.slots).transpose(0, 1).unsqueeze(1)
    values = v.index_select(0, chunk.slots).transpose(0, 1).unsqueeze(1)
    for tile in chunk.tiles:
        tokens = slice(chunk.start + tile.first_row, chunk.start + tile.end_row)
        visible = slice(tile.first_key, tile.end_key)
        result = _softmax_attention(
            shape,
            q[tokens].view(-1, Hkv, group, D).permute(1, 2, 0, 3),
            keys[:, :, visible].expand(-1, group, -1, -1),
            values[:, :, visible].expand(-1, group, -1, -1),
            tile.mask,
        )
        out[tokens].view(-1, Hkv, group, D).copy_(result.permute(2, 0, 1, 3))


def _softmax_attention(
    shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> Tensor:
    """softmax(q k^T * scale + mask) v over the last two dimensions, sums in float32."""
    k, v = k.to(q.dtype), v.to(q.dtype)
    if not shape.softcap:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=shape.scale)
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * shape.scale
    scores = shape.softcap * torch.tanh(scores / shape.softcap) + mask
    return torch.matmul(scores.softmax(-1), v.float()).to(q.dtype)
