"""Steps over a paged cache for backend tests, and the dense float64 attention that judges them.

The reference shares nothing with any backend: it gathers each request's keys one token at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attention_backends._interface import (
    NULL_BLOCK,
    NUM_RESERVED_BLOCKS,
    TRASH_BLOCK,
    AttentionBatch,
    AttentionShape,
    LayerKV,
)


def make_shape(
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    softcap: float = 0.0,
) -> AttentionShape:
    scale = 1 / math.sqrt(head_dim)
    return AttentionShape(heads[0], heads[1], head_dim, dtype, dtype, scale, window, softcap)


@dataclass
class Step:
    """A padded step: what a runner would hand to a backend, with the cache that it reads."""

    shape: AttentionShape
    block_size: int
    batch: AttentionBatch
    kv: LayerKV
    q: Tensor

    @property
    def real(self) -> int:
        return self.batch.num_tokens

    def expected(self) -> Tensor:
        """[real tokens, Hq, D] float64"""
        return dense_attention(self)[: self.real]


def make_step(
    shape: AttentionShape,
    block_size: int,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    num_tokens: int | None = None,
    num_reqs: int | None = None,
    max_blocks: int | None = None,
    num_blocks: int | None = None,
    garbage: float = math.nan,
    seed: int = 0,
) -> Step:
    """A step of `query_lens` over `seq_lens`, padded to `num_tokens` and `num_reqs`.

    Padding tokens go to one tail request, or, where every row of the padded step has one token, one
    to a row, as decode buckets have it. Every slot that no request owns holds `garbage`, but for
    the null block, which is zero.
    """
    rng = np.random.default_rng(seed)
    queries, keys = list(query_lens), list(seq_lens)
    tokens, reqs = sum(queries), len(queries)
    padded = num_tokens or tokens
    rows = num_reqs or reqs + (padded > tokens)
    assert padded >= tokens, "the step is larger than its bucket"
    assert rows >= reqs + (padded > tokens), "the bucket has no row for the step's requests"
    if padded == rows and all(n == 1 for n in queries):
        tail = [1] * (padded - tokens)
    else:
        tail = [padded - tokens] if padded > tokens else []
    tail += [0] * (rows - reqs - len(tail))
    queries, keys = queries + tail, keys + tail

    counts = [-(-n // block_size) for n in keys[:reqs]]
    width = max_blocks or max([*counts, *(-(-n // block_size) for n in tail), 1])
    pool = num_blocks or NUM_RESERVED_BLOCKS + sum(counts) + 3
    free = rng.permutation(np.arange(NUM_RESERVED_BLOCKS, pool)).tolist()
    table = np.full((rows, width), NULL_BLOCK, np.int32)
    for row, count in enumerate(counts):
        table[row, :count] = [free.pop() for _ in range(count)]

    kv = _fill_cache(shape, block_size, pool, table, keys[:reqs], garbage, seed)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    lens = np.asarray(keys, np.int32)
    generator = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(padded, shape.num_q_heads, shape.head_dim, generator=generator).to(shape.dtype)
    slots = _slots(table, queries[:reqs], keys[:reqs], padded, block_size)
    batch = AttentionBatch(
        num_tokens=tokens,
        num_reqs=reqs,
        query_start_loc=torch.from_numpy(starts.copy()),
        seq_lens=torch.from_numpy(lens.copy()),
        block_table=torch.from_numpy(table.copy()),
        slot_mapping=torch.from_numpy(slots),
        query_start_loc_cpu=starts,
        seq_lens_cpu=lens,
        block_table_cpu=table,
        max_query_len=max(queries),
        max_seq_len=max(keys),
    )
    return Step(shape, block_size, batch, kv, q)


def _fill_cache(
    shape: AttentionShape,
    block_size: int,
    pool: int,
    table: np.ndarray,
    keys: Sequence[int],
    garbage: float,
    seed: int,
) -> LayerKV:
    generator = torch.Generator().manual_seed(seed + 2)
    size = (2, pool, block_size, shape.num_kv_heads, shape.head_dim)
    values = torch.randn(size, generator=generator).to(shape.kv_dtype)
    owned = torch.zeros(pool, block_size, dtype=torch.bool)
    for row, length in enumerate(keys):
        for position in range(length):
            owned[table[row, position // block_size], position % block_size] = True
    values[:, ~owned] = garbage
    values[:, NULL_BLOCK] = 0
    return LayerKV(values[0], values[1])


def _slots(
    table: np.ndarray, queries: Sequence[int], keys: Sequence[int], padded: int, block_size: int
) -> np.ndarray:
    slots = [
        table[row, position // block_size] * block_size + position % block_size
        for row, (query, length) in enumerate(zip(queries, keys, strict=True))
        for position in range(length - query, length)
    ]
    trash = [TRASH_BLOCK * block_size + i % block_size for i in range(padded - len(slots))]
    return np.asarray(slots + trash, np.int64)


def dense_attention(step: Step) -> Tensor:
    """[T, Hq, D] float64 of every row, padding included; zero where a token sees no key."""
    return paged_reference(
        step.q,
        step.kv.k,
        step.kv.v,
        query_starts=step.batch.query_start_loc_cpu.tolist(),
        key_lens=step.batch.seq_lens_cpu.tolist(),
        blocks=step.batch.block_table_cpu.tolist(),
        scale=step.shape.scale,
        left=None if step.shape.window is None else step.shape.window - 1,
        softcap=step.shape.softcap,
    )


def paged_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    query_starts: Sequence[int],
    key_lens: Sequence[int],
    blocks: Sequence[Sequence[int]],
    scale: float,
    left: int | None,
    softcap: float,
    causal: bool = True,
) -> Tensor:
    """Attention of q [T, Hq, D] in float64, a token at a time; it sees `left` keys before it."""
    out = torch.full(q.shape, math.nan, dtype=torch.float64)
    block_size, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    for row, length in enumerate(key_lens):
        begin, end = query_starts[row], query_starts[row + 1]
        table = torch.tensor(blocks[row], dtype=torch.int64)
        at = torch.arange(min(length, len(blocks[row]) * block_size))
        k, v = (
            cache[table[at // block_size], at % block_size].double().repeat_interleave(group, 1)
            for cache in (k_cache, v_cache)
        )
        for token in range(begin, end):
            last = len(at) - (end - token) if causal else len(at) - 1
            first = 0 if left is None else max(0, last - left)
            if last < first:
                out[token] = 0
                continue
            seen = slice(first, last + 1)
            scores = torch.einsum("hd,khd->hk", q[token].double(), k[seen]) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), v[seen])
    return out
