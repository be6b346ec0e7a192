"""Random draws: temperature, min-p, top-k and top-p, one uniform number per row.

A token's *gap* is (largest score - its score) / temperature, so its weight is exp(-gap). Tokens are
ordered by (gap, id), which makes every set below unique: top-k keeps the first k; min-p those with
weight >= min_p; top-p the shortest prefix of these survivors with at least `top_p` of their mass.
One token always survives. The draw inverts the distribution function in this order; rows without
truncation invert it in the order of ids, which needs no sort.

A row first looks at its head (see `blocks`), whose part below `bound` is exact; only where that
does not hold the kept set is the whole row sorted. Which way a row goes depends on that row alone,
and both give the same token. On a GPU the host must not wait to learn which way: `draw_from_head`
says OPEN of a row that has to be sorted, and the caller sorts it once it has read the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.sampling.blocks import BLOCK, BlockedScores, Head, copy_rows

CHUNK_BYTES = {"cpu": 4 << 20}
"""Size of the float32 scratch for passes over whole rows: on a CPU it should stay in the cache."""
CHUNK_BYTES_DEFAULT = 64 << 20
"""Enough work to fill a GPU; sorting takes about 8 times as much."""

OPEN = -3
"""Stands for a token that the head could not tell."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """[n] each, on the scores' device."""

    temperature: Tensor
    """float32, > 0"""
    top_k: Tensor
    """int64 in [1, V]; V is off"""
    top_p: Tensor
    """float64 in (0, 1]"""
    max_gap: Tensor
    """float32, -log(min_p); inf is off"""
    uniform: Tensor
    """float64 in (0, 1)"""
    has_max_gap: bool
    """Whether a row may have a `max_gap`; known on the host."""
    has_nucleus: bool
    """Whether a row may have a `top_p` without a `top_k`; known on the host."""

    def take(self, index: Tensor | slice) -> DrawParams:
        return DrawParams(
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.max_gap[index],
            self.uniform[index],
            self.has_max_gap,
            self.has_nucleus,
        )


def draw_truncated(b: BlockedScores, index: Tensor, p: DrawParams) -> Tensor:
    """[m] tokens of the rows `index` [m] of `b`, whose params `p` [m] limit the vocabulary.

    It looks at values: for the CPU.
    """
    head = b.head(index)
    choice, bound = _of_head(b, index, head, p)
    closed = choice.closes(bound)
    if not bool(closed.all()):
        ask = (~closed & _wants_mass(b, p)).nonzero()[:, 0]
        choice.mass[ask] = survivors_mass(b, index[ask], p.take(ask))
        closed[ask] |= choice.closes_with_mass(bound)[ask]
    tokens = head.ids(choice.draw())
    open_rows = (~closed).nonzero()[:, 0]
    tokens[open_rows] = draw_sorted(b, index[open_rows], p.take(open_rows))
    return tokens


def draw_from_head(b: BlockedScores, index: Tensor, p: DrawParams) -> Tensor:
    """The tokens of `draw_truncated`, OPEN where a row must be sorted; looks at no value."""
    head = b.head(index)
    choice, bound = _of_head(b, index, head, p)
    closed = choice.closes(bound)
    if p.has_nucleus:
        asks = ~closed & _wants_mass(b, p)
        choice.mass = torch.where(asks, survivors_mass(b, index, p), choice.mass)
        closed = closed | (asks & choice.closes_with_mass(bound))
    return torch.where(closed, head.ids(choice.draw()), OPEN)


def draw_sorted(b: BlockedScores, index: Tensor, p: DrawParams) -> Tensor:
    """The tokens of `draw_truncated`, each row sorted as a whole; looks at no value."""
    out = torch.empty_like(index)
    for part, scratch in chunks_with_scratch(b.scores, len(index)):
        q = p.take(part)
        gaps = shifted_rows(b, index[part], scratch).neg_().div_(q.temperature[:, None])
        out[part] = _Prefix(gaps, q).draw()
    return out


def _of_head(b: BlockedScores, index: Tensor, head: Head, p: DrawParams) -> tuple[_Prefix, Tensor]:
    """The prefix of the heads' candidates, and [m] the gap up to which a head is exact."""
    largest, temperature = b.max[index, None], p.temperature[:, None]
    gaps = (largest - head.scores) / temperature
    return _Prefix(gaps, p), ((largest - head.bound[:, None]) / temperature)[:, 0]


def _wants_mass(b: BlockedScores, p: DrawParams) -> Tensor:
    """[m] whether a nucleus alone limits the row, so that its head closes given the whole mass."""
    return (p.top_k >= b.scores.shape[1]) & (p.top_p < 1)


class _Prefix:
    """The kept set of each row, as the length of a prefix of its sorted gaps [m, C]."""

    def __init__(self, gaps: Tensor, p: DrawParams) -> None:
        self.gaps, self.p = gaps, p
        self.sorted = sort_rows(gaps)
        self.cum = torch.cumsum(torch.exp(-self.sorted), 1, dtype=torch.float64)
        width = gaps.shape[1]
        within = torch.searchsorted(self.sorted, p.max_gap[:, None], right=True)[:, 0]
        self.num_survivors = torch.minimum(p.top_k, within)
        edge = _at(self.sorted, (p.top_k - 1).clamp(max=width - 1))
        edge = torch.where(p.top_k <= width, edge, torch.inf)
        self.survivors_gap = torch.minimum(edge, p.max_gap)
        self.mass = _at(self.cum, self.num_survivors - 1)

    def closes(self, bound: Tensor) -> Tensor:
        """[m] whether all survivors of top-k and min-p lie in the exact part, below `bound` [m]."""
        return (self.survivors_gap < bound) | bound.isinf()

    def closes_with_mass(self, bound: Tensor) -> Tensor:
        """[m] whether the nucleus does, given the survivors' `mass`."""
        last = self._num_kept() - 1
        reached = _at(self.cum, last) >= self.p.top_p * self.mass
        return (self.p.top_p < 1) & reached & (_at(self.sorted, last) < bound)

    def _num_kept(self) -> Tensor:
        nucleus = torch.searchsorted(self.cum, (self.p.top_p * self.mass)[:, None])[:, 0] + 1
        nucleus = torch.where(self.p.top_p < 1, nucleus, self.num_survivors)
        return torch.minimum(nucleus, self.num_survivors)

    def draw(self) -> Tensor:
        """[m] places in [0, C) of the drawn tokens."""
        total = _at(self.cum, self._num_kept() - 1)
        target = (self.p.uniform * total)[:, None]
        order = torch.searchsorted(self.cum, target, right=True)
        order.clamp_(max=self.gaps.shape[1] - 1)
        gap = self.sorted.gather(1, order)
        among_equals = order - torch.searchsorted(self.sorted, gap)
        equal = torch.cumsum(self.gaps == gap, 1, dtype=torch.int32)
        return torch.searchsorted(equal, (among_equals + 1).int())[:, 0]


def draw_untruncated(b: BlockedScores, index: Tensor, p: DrawParams) -> Tensor:
    """[m] tokens of the rows `index` [m] of `b`, drawn from their whole softmax."""
    out = torch.empty_like(index)
    for part, scratch in chunks_with_scratch(b.scores, len(index)):
        weights = _weights(b, index[part], p.take(part), scratch)
        out[part] = _invert_by_id(weights, p.uniform[part])
    return out


def survivors_mass(b: BlockedScores, index: Tensor, p: DrawParams) -> Tensor:
    """[m] float64: the weights of whole rows, those beyond `max_gap` left out, summed."""
    out = torch.empty(len(index), dtype=torch.float64, device=index.device)
    for part, scratch in chunks_with_scratch(b.scores, len(index)):
        weights = _weights(b, index[part], p.take(part), scratch)
        out[part] = sum_blocks(weights).sum(1, dtype=torch.float64)
    return out


def shifted_rows(b: BlockedScores, index: Tensor, scratch: Tensor) -> Tensor:
    """[m, V] float32, in `scratch`: the rows less their largest score."""
    return copy_rows(b.scores, index, scratch).sub_(b.max[index, None])


def _weights(b: BlockedScores, index: Tensor, p: DrawParams, scratch: Tensor) -> Tensor:
    """[m, V] float32, in `scratch`: exp(-gap), 0 beyond max_gap."""
    z = shifted_rows(b, index, scratch).div_(p.temperature[:, None])
    if p.has_max_gap:
        z.masked_fill_(z < -p.max_gap[:, None], -torch.inf)
    return z.exp_()


def _invert_by_id(weights: Tensor, uniform: Tensor) -> Tensor:
    """weights [m, V] -> [m] ids: first the block that the draw falls into, then the id in it."""
    cum = sum_blocks(weights).cumsum(1, dtype=torch.float64)
    target = uniform[:, None] * cum[:, -1:]
    block = torch.searchsorted(cum, target, right=True)
    before = torch.where(block > 0, cum.gather(1, (block - 1).clamp(min=0)), 0.0)
    ids = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(1, ids.clamp(max=weights.shape[1] - 1))
    inside = torch.where(ids < weights.shape[1], inside, 0.0).cumsum(1, dtype=torch.float64)
    # a block's float32 sum may exceed its parts by a rounding: then its last weight is meant
    last = torch.searchsorted(inside, inside[:, -1:].contiguous())
    place = torch.searchsorted(inside, target - before, right=True)
    return (block * BLOCK + torch.minimum(place, last))[:, 0]


def sum_blocks(x: Tensor) -> Tensor:
    """[m, V] -> [m, ceil(V / BLOCK)] sums; a row's do not depend on the other rows."""
    whole = x.shape[1] // BLOCK
    parts = [x[:, : whole * BLOCK].view(len(x), whole, BLOCK).sum(-1)] if whole else []
    if x.shape[1] % BLOCK:
        parts.append(x[:, whole * BLOCK :].sum(-1, keepdim=True))
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def sort_rows(x: Tensor) -> Tensor:
    """Each row in ascending order, values only; numpy's sort is vectorised, torch's is not."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.sort(x.numpy(), axis=1))
    return x.sort(1).values


def _at(x: Tensor, place: Tensor) -> Tensor:
    return x.gather(1, place[:, None])[:, 0]


def chunks_with_scratch(scores: Tensor, num_rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of [0, num_rows), each with the same memory to hold its rows in float32 [m, V]."""
    size = max(1, min(num_rows, rows_per_chunk(scores)))
    scratch = torch.empty(size, scores.shape[1], device=scores.device)
    for start in range(0, num_rows, size):
        part = slice(start, min(start + size, num_rows))
        yield part, scratch[: part.stop - start]


def rows_per_chunk(scores: Tensor) -> int:
    limit = CHUNK_BYTES.get(scores.device.type, CHUNK_BYTES_DEFAULT)
    return max(1, limit // (4 * scores.shape[1]))
