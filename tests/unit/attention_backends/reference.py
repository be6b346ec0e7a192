"""An independent dense attention in float64, and batches in the runtime's layout to compare on."""

from __future__ import annotations

import math

import numpy as np
import torch

from attention_backends import (
    NUM_RESERVED_BLOCKS,
    TRASH_BLOCK,
    AttentionBatch,
    AttentionShape,
    LayerKV,
)

CPU = torch.device("cpu")


def make_shape(num_q_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32, **changes):
    return AttentionShape(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        kv_dtype=dtype,
        scale=changes.pop("scale", head_dim**-0.5),
        **changes,
    )


class Case:
    """Requests given as (seq_len, query_len), with their K/V dense and in a paged pool.

    Args:
        poison: what every slot holds that no request has filled, the null block excepted.
        tail: padding tokens, covered by a tail request, followed by `empty` rows without tokens.
        decode_rows: padding requests of one token each instead (a decode bucket).
    """

    def __init__(
        self,
        shape,
        requests,
        *,
        block_size=4,
        seed=0,
        poison=math.nan,
        tail=0,
        empty=0,
        decode_rows=0,
    ):
        generator = torch.Generator().manual_seed(seed)
        self.shape, self.requests, self.block_size = shape, requests, block_size
        Hkv, D = shape.num_kv_heads, shape.head_dim

        def randn(*size):
            return torch.randn(size, generator=generator).to(shape.dtype)

        counts = [-(-seq // block_size) for seq, _ in requests]
        num_blocks = sum(counts) + NUM_RESERVED_BLOCKS + 3
        self.kv = LayerKV(
            *(torch.full((2, num_blocks, block_size, Hkv, D), poison, dtype=shape.kv_dtype))
        )
        self.kv.k[0] = self.kv.v[0] = 0.0
        order = np.random.default_rng(seed).permutation(num_blocks - NUM_RESERVED_BLOCKS)
        free = [int(b) + NUM_RESERVED_BLOCKS for b in order]
        longest = max([*counts, -(-tail // block_size), 1])
        R = len(requests) + (tail > 0) + empty + decode_rows
        table = np.zeros((R, longest + 1), np.int32)
        self.keys, self.values, slots = [], [], []
        for r, (seq, query) in enumerate(requests):
            blocks = [free.pop() for _ in range(counts[r])]
            table[r, : counts[r]] = blocks
            self.keys.append(randn(seq, Hkv, D))
            self.values.append(randn(seq, Hkv, D))
            where = [blocks[p // block_size] * block_size + p % block_size for p in range(seq)]
            self.kv.k.view(-1, Hkv, D)[where] = self.keys[-1].to(shape.kv_dtype)
            self.kv.v.view(-1, Hkv, D)[where] = self.values[-1].to(shape.kv_dtype)
            slots += where[seq - query :]
        query_lens = [q for _, q in requests] + [tail] * (tail > 0) + [0] * empty
        query_lens += [1] * decode_rows
        seq_lens = [s for s, _ in requests] + [tail] * (tail > 0) + [0] * empty + [1] * decode_rows
        starts = np.cumsum([0, *query_lens]).astype(np.int32)
        lens = np.array(seq_lens, np.int32)
        slots += [TRASH_BLOCK * block_size] * (int(starts[-1]) - len(slots))
        self.num_tokens = sum(q for _, q in requests)
        self.q = randn(int(starts[-1]), shape.num_q_heads, D)
        self.batch = AttentionBatch(
            num_tokens=self.num_tokens,
            num_reqs=len(requests),
            query_start_loc=torch.from_numpy(starts.copy()),
            seq_lens=torch.from_numpy(lens.copy()),
            block_table=torch.from_numpy(table.copy()),
            slot_mapping=torch.tensor(slots),
            query_start_loc_cpu=starts,
            seq_lens_cpu=lens,
            block_table_cpu=table,
            max_query_len=max(query_lens, default=0),
            max_seq_len=max(seq_lens, default=0),
        )

    def expected(self):
        """[real tokens, Hq, D] float64."""
        outs, start = [], 0
        for (_, query), keys, values in zip(self.requests, self.keys, self.values, strict=True):
            q = self.q[start : start + query]
            outs.append(dense_attention(self.shape, q, keys, values))
            start += query
        return torch.cat(outs)

    def run(self, backend, plan=None):
        """[T, Hq, D] from the backend, written over NaN."""
        out = torch.full_like(self.q, math.nan)
        plan = backend.plan(self.batch) if plan is None else plan
        backend.attend(0, self.q, self.kv, out, plan)
        return out


def dense_attention(shape, q, k, v):
    """One request: q [n, Hq, D] are the last n of the L positions of k, v [L, Hkv, D]."""
    n, L = len(q), len(k)
    group = shape.num_q_heads // shape.num_kv_heads
    out = torch.empty(q.shape, dtype=torch.float64)
    for head in range(shape.num_q_heads):
        keys, values = k[:, head // group].double(), v[:, head // group].double()
        for i in range(n):
            position = L - n + i
            first = 0 if shape.window is None else max(0, position - shape.window + 1)
            scores = keys[first : position + 1] @ q[i, head].double() * shape.scale
            if shape.softcap:
                scores = shape.softcap * torch.tanh(scores / shape.softcap)
            out[i, head] = torch.softmax(scores, 0) @ values[first : position + 1]
    return out
