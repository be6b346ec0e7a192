"""Attention batches by hand, and attention by its definition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attention_backends import (
    NUM_RESERVED_BLOCKS,
    AttentionBatch,
    AttentionShape,
    Bucket,
    LayerKV,
)

PADDING = 3
"""Tokens of the tail request of batches that are not all of one token, outside of buckets."""


def num_blocks_of(seq_lens: Sequence[int], block_size: int) -> int:
    """Blocks that `make_batch` uses, the reserved ones included."""
    return NUM_RESERVED_BLOCKS + sum(-(-length // block_size) for length in seq_lens)


def make_batch(
    query_lens: list[int],
    seq_lens: list[int],
    block_size: int,
    device: torch.device,
    *,
    bucket: Bucket | None = None,
    max_keys: int = 0,
) -> AttentionBatch:
    """Requests over blocks in random order, padded.

    Args:
        bucket: padded to its sizes; None: by a tail request and an empty one, unless all have one
            token.
        max_keys: that the block table has room for; 0: as many as there are.
    """
    num_tokens, num_reqs = sum(query_lens), len(query_lens)
    counts = [-(-length // block_size) for length in seq_lens]
    ids = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32) + NUM_RESERVED_BLOCKS
    padding = _padding(query_lens, bucket)
    table = np.zeros(
        (num_reqs + len(padding), max([-(-max_keys // block_size), *counts])), np.int32
    )
    for row, (start, count) in enumerate(zip(np.cumsum([0, *counts]), counts, strict=False)):
        table[row, :count] = ids[start : start + count]
    starts = np.concatenate([[0], np.cumsum([*query_lens, *padding])]).astype(np.int32)
    lens = np.array([*seq_lens, *padding], np.int32)

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, copy=True)

    return AttentionBatch(
        num_tokens=num_tokens,
        num_reqs=num_reqs,
        query_start_loc=put(starts),
        seq_lens=put(lens),
        block_table=put(table),
        slot_mapping=torch.full((int(starts[-1]),), block_size, device=device),
        query_start_loc_cpu=starts,
        seq_lens_cpu=lens,
        block_table_cpu=table,
        max_query_len=max([*query_lens, *padding]),
        max_seq_len=int(lens.max()),
    )


def empty_batch(
    bucket: Bucket, max_keys: int, block_size: int, device: torch.device
) -> AttentionBatch:
    """The legal dummy that a bucket is captured with: padding alone."""
    return make_batch([], [], block_size, device, bucket=bucket, max_keys=max_keys)


def _padding(query_lens: list[int], bucket: Bucket | None) -> list[int]:
    """Query tokens of the requests that pad, and their keys: one each in a decode bucket, else a
    tail request and empty ones."""
    if bucket is None:
        return [PADDING, 0] if max(query_lens) > 1 else []
    missing = bucket.num_reqs - len(query_lens)
    if bucket.kind == "decode":
        return [1] * missing
    tail = bucket.num_tokens - sum(query_lens)
    return [tail, *[0] * (missing - 1)] if tail else [0] * missing


def attention_in_float64(
    q: Tensor, kv: LayerKV, batch: AttentionBatch, shape: AttentionShape
) -> Tensor:
    """[T, Hq, D] by definition, request by request."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = shape.num_q_heads // shape.num_kv_heads
    for row in range(batch.num_reqs):
        start, end = batch.query_start_loc_cpu[row : row + 2].tolist()
        length = int(batch.seq_lens_cpu[row])
        blocks = batch.block_table[row].long()
        k, v = (cache[blocks].flatten(0, 1)[:length].double() for cache in kv)
        scores = torch.einsum("qhd,khd->hqk", q[start:end].double(), k.repeat_interleave(group, 1))
        scores *= shape.scale
        if shape.softcap:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        place = torch.arange(length - (end - start), length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None, :]
        hidden = key > place
        if shape.window is not None:
            hidden |= key <= place - shape.window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))
    return out
