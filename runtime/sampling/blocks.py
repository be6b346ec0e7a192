"""Scores seen through the maxima of small blocks of ids: a row's top without a sort of the row.

Shapes: n rows, V ids, BLOCK ids per block, C candidates.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runtime.ops import argmax, has_kernels

BLOCK = 64
HEAD_BLOCKS = 64
"""How many blocks make the head of a row; at least so many of its largest scores are in it."""


class Head(NamedTuple):
    """The candidates of some rows, in ascending order of their ids."""

    scores: Tensor
    """[n, C] float32"""
    block_ids: Tensor
    """[n, C // BLOCK]; candidates after these blocks are the ids of the tail"""
    bound: Tensor
    """[n] no id that is left out has a score above this; -inf where none is left out"""
    tail_start: int

    def ids(self, places: Tensor) -> Tensor:
        """[n] places in [0, C) -> [n] ids."""
        in_blocks = self.block_ids.shape[1] * BLOCK
        block = (places // BLOCK).clamp(max=self.block_ids.shape[1] - 1)
        if not in_blocks:
            return places
        ids = self.block_ids.gather(1, block[:, None])[:, 0] * BLOCK + places % BLOCK
        return torch.where(places < in_blocks, ids, self.tail_start + places - in_blocks)

    def all_ids(self) -> Tensor:
        """[n, C] the candidates' ids."""
        inside = torch.arange(BLOCK, device=self.scores.device)
        ids = (self.block_ids[:, :, None] * BLOCK + inside).flatten(1)
        num_tail = self.scores.shape[1] - ids.shape[1]
        tail = self.tail_start + torch.arange(num_tail, device=ids.device)
        return torch.cat([ids, tail.expand(len(ids), -1)], 1)


class BlockedScores:
    """Scores [n, V] with the maxima of their blocks; any float dtype, rows may be strided.

    The scores are not copied and never written to; they are first read when a maximum is asked for.
    """

    def __init__(self, scores: Tensor, *, head_blocks: int = HEAD_BLOCKS) -> None:
        self.scores = scores
        self.num_blocks = scores.shape[1] // BLOCK
        self.tail_start = self.num_blocks * BLOCK
        self.head_blocks = head_blocks
        self._blocks = scores[:, : self.tail_start].view(len(scores), self.num_blocks, BLOCK)
        self._tail = scores[:, self.tail_start :]

    @cached_property
    def _block_max(self) -> Tensor:
        parts = [self._blocks.amax(-1)] if self.num_blocks else []
        if self._tail.shape[1]:
            parts.append(self._tail.amax(-1, keepdim=True))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    @cached_property
    def max(self) -> Tensor:
        """[n] float32, NaN where a row holds a NaN."""
        return self._best[0] if self._has_best else self._block_max.amax(-1).float()

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        return argmax(self.scores)

    @cached_property
    def _has_best(self) -> bool:
        """Whether one kernel gives maximum and id, in one walk over the scores."""
        return has_kernels(self.scores)

    def argmax(self) -> Tensor:
        """[n] the id of the largest score, the lowest one where several are equal."""
        if self._has_best:
            return self._best[1]
        first = self._block_max.argmax(-1, keepdim=True) * BLOCK
        ids = first + torch.arange(BLOCK, device=first.device)
        ids.clamp_(max=self.scores.shape[1] - 1)
        inside = self.scores.gather(1, ids).argmax(-1, keepdim=True)
        return ids.gather(1, inside)[:, 0]

    def head(self, index: Tensor) -> Head:
        """The blocks of the rows `index` [m] that have the largest maxima, and the tail."""
        maxima = self._block_max[index, : self.num_blocks]
        if self.num_blocks > self.head_blocks:
            block_ids, bound = _largest(maxima.float(), self.head_blocks)
        else:
            block_ids = torch.arange(self.num_blocks, device=index.device).expand(len(index), -1)
            bound = torch.full((len(index),), -torch.inf, device=index.device)
        scores = self._blocks[index[:, None], block_ids].flatten(1)
        if self._tail.shape[1]:
            scores = torch.cat([scores, self._tail[index]], 1)
        return Head(scores.float(), block_ids, bound, self.tail_start)


def _largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x [m, N] float32 -> [m, count] places of its largest, ascending; [m] the next largest."""
    if x.device.type == "cpu":  # numpy's selection is vectorised, torch's is not
        cut = x.shape[1] - count
        order = np.argpartition(x.numpy(), cut - 1, axis=1)
        places = torch.from_numpy(np.sort(order[:, cut:], axis=1))
        return places, x.gather(1, torch.from_numpy(order[:, cut - 1 : cut]))[:, 0]
    top = x.topk(count + 1)
    return top.indices[:, :-1].sort().values, top.values[:, -1]


def copy_rows(scores: Tensor, index: Tensor, out: Tensor) -> Tensor:
    """out [m, V] = the rows `index` [m] of `scores`, in out's dtype; returns `out`."""
    if scores.device.type != "cpu":
        return out.copy_(scores[index])
    for i, row in zip(index.tolist(), out, strict=True):  # no copy between: half the traffic
        row.copy_(scores[i])
    return out
