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
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE_ROWS = 256
"""Query rows of a chunk that share one mask; keys after a tile's last row are not read for it."""
MAX_GROUP_KEYS = 8192
"""Gathered keys of one batch of one-token requests: more than that falls out of a CPU's cache."""
SIMILAR = 0.75
"""Requests are batched with ones at most this much shorter, so padding stays below a quarter."""


class MaskKind(NamedTuple):
    """What the masks of a layer depend on."""

    window: int | None
    dtype: torch.dtype


@dataclass(slots=True)
class OneTokenRows:
    """G requests with one query token each, padded to L keys by repeating the last key, masked."""

    tokens: Tensor
    """[G] int64, index into T of each request's token."""
    slots: Tensor
    """[G * L] int64."""
    mask: Tensor
    """[G, 1, 1, L], 0 or -inf."""


@dataclass(slots=True)
class Chunk:
    """One request with several query tokens; its keys are `slots`, all of them real."""

    start: int
    """First token of the chunk, index into T."""
    slots: Tensor
    """[L] int64."""
    tiles: list[Tile]


class Tile(NamedTuple):
    """Some query rows of a chunk and the keys that they may see."""

    first_row: int
    end_row: int
    first_key: int
    end_key: int
    mask: Tensor
    """[rows, keys], 0 or -inf."""


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
    preference: ClassVar[int] = 0

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        self._shapes = list(shapes)
        self._mask_kinds = list(dict.fromkeys(MaskKind(s.window, s.dtype) for s in shapes))
        self._block_size = block_size
        self._device = device
        self._bands: dict[MaskKind, Tensor] = {}
        self._max_model_len = 0

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
                self._one_token_rows(batch, requests, kind)
                for requests in _group_by_length(batch.seq_lens_cpu, one_token, kind.window)
            ]
            plan.chunks[kind] = [
                self._chunk(batch, int(r), int(starts[r]), int(query_lens[r]), kind)
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
            rows = self._bucket_rows(batch, self._baked_keys(bucket, kind), kind)
            plan.rows[kind], plan.chunks[kind] = [rows], []
        return plan

    def refresh(self, plan: StepPlan, batch: AttentionBatch) -> None:
        """Raises ValueError where a request has more keys than the bucket was captured for."""
        for kind, (rows,) in plan.rows.items():
            baked = rows.mask.shape[-1]
            needed = min(batch.max_seq_len, kind.window or batch.max_seq_len)
            if needed > baked:
                raise ValueError(f"torch_paged: {needed} keys in a graph captured for {baked}")
            fresh = self._bucket_rows(batch, baked, kind)
            rows.slots.copy_(fresh.slots)
            rows.mask.copy_(fresh.mask)

    def _allocate_layer(self, shape: AttentionShape, num_blocks: int) -> LayerKV:
        sizes = (2, num_blocks, self._block_size, shape.num_kv_heads, shape.head_dim)
        if self._device.type == "cpu":
            return LayerKV(*_lazy_zeros(sizes, shape.kv_dtype))
        return LayerKV(*torch.zeros(sizes, dtype=shape.kv_dtype, device=self._device))

    def _baked_keys(self, bucket: Bucket, kind: MaskKind) -> int:
        keys = bucket.kv_class or self._max_model_len
        return keys if kind.window is None else min(keys, kind.window)

    def _one_token_rows(
        self, batch: AttentionBatch, requests: np.ndarray, kind: MaskKind
    ) -> OneTokenRows:
        longest = int(batch.seq_lens_cpu[requests].max())
        num_keys = longest if kind.window is None else min(longest, kind.window)
        index = torch.from_numpy(requests).to(self._device)
        return self._padded_keys(
            batch.query_start_loc[index].long(),
            batch.seq_lens[index].long(),
            batch.block_table[index],
            num_keys,
            kind,
        )

    def _bucket_rows(self, batch: AttentionBatch, num_keys: int, kind: MaskKind) -> OneTokenRows:
        return self._padded_keys(
            batch.query_start_loc[:-1].long(),
            batch.seq_lens.long(),
            batch.block_table,
            num_keys,
            kind,
        )

    def _padded_keys(
        self, tokens: Tensor, seq_lens: Tensor, table: Tensor, num_keys: int, kind: MaskKind
    ) -> OneTokenRows:
        """The last `num_keys` keys of each request; where it has fewer, its last key again."""
        first = torch.zeros_like(seq_lens)
        if kind.window is not None:
            first = (seq_lens - kind.window).clamp_(min=0)
        positions = first[:, None] + torch.arange(num_keys, device=self._device)
        is_key = positions < seq_lens[:, None]
        positions = torch.minimum(positions, seq_lens[:, None] - 1)
        blocks = table.gather(1, positions // self._block_size).long()
        slots = blocks * self._block_size + positions % self._block_size
        mask = torch.zeros(is_key.shape, dtype=kind.dtype, device=self._device)
        mask.masked_fill_(~is_key, float("-inf"))
        return OneTokenRows(tokens, slots.flatten(), mask[:, None, None, :])

    def _chunk(
        self, batch: AttentionBatch, request: int, start: int, query_len: int, kind: MaskKind
    ) -> Chunk:
        seq_len = int(batch.seq_lens_cpu[request])
        computed = seq_len - query_len
        first_key = _first_visible(computed, kind.window)
        positions = np.arange(first_key, seq_len)
        blocks = batch.block_table_cpu[request, positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size
        tiles = []
        for row in range(0, query_len, TILE_ROWS):
            end_row = min(row + TILE_ROWS, query_len)
            low, high = _first_visible(computed + row, kind.window), computed + end_row
            mask = self._causal_mask(end_row - row, high - low, kind)
            tiles.append(Tile(row, end_row, low - first_key, high - first_key, mask))
        return Chunk(start, torch.from_numpy(slots).to(self._device), tiles)

    def _causal_mask(self, num_rows: int, num_keys: int, kind: MaskKind) -> Tensor:
        """[num_rows, num_keys], bottom-right aligned: a part of one band, which is kept, since a
        key's visibility depends only on its distance from the row."""
        context = num_keys - num_rows
        band = self._bands.get(kind)
        if band is None or band.shape[1] - TILE_ROWS < context:
            size = 1 << max(context, TILE_ROWS).bit_length()
            band = self._bands[kind] = _band(size, kind, self._device)
        zero = band.shape[1] - TILE_ROWS
        return band[:num_rows, zero - context : zero + num_rows]


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _band(context: int, kind: MaskKind, device: torch.device) -> Tensor:
    """[TILE_ROWS, context + TILE_ROWS]; column context + i is row i's own key."""
    rows = torch.arange(TILE_ROWS, device=device)[:, None]
    distance = rows - torch.arange(-context, TILE_ROWS, device=device)
    hidden = distance < 0
    if kind.window is not None:
        hidden |= distance >= kind.window
    band = torch.zeros(hidden.shape, dtype=kind.dtype, device=device)
    return band.masked_fill_(hidden, float("-inf"))


def _group_by_length(
    seq_lens: np.ndarray, requests: np.ndarray, window: int | None
) -> list[np.ndarray]:
    """Split one-token requests into groups of similar numbers of visible keys, longest first."""
    lens = seq_lens[requests] if window is None else np.minimum(seq_lens[requests], window)
    order = np.argsort(-lens, kind="stable")
    requests, lens = requests[order], lens[order]
    groups, start = [], 0
    while start < len(requests):
        longest = int(lens[start])
        similar = int(np.searchsorted(-lens, -longest * SIMILAR, side="right"))
        end = min(max(similar, start + 1), start + max(1, MAX_GROUP_KEYS // longest))
        groups.append(requests[start:end])
        start = end
    return groups


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


def _lazy_zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages are not touched yet, aligned for vector loads: a large pool starts at once
    and holds only the memory that was used."""
    nbytes = dtype.itemsize * int(np.prod(sizes))
    memory = np.zeros(nbytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    return torch.from_numpy(memory[skip : skip + nbytes]).view(dtype).view(sizes)
