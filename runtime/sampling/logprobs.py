"""Log-probabilities of raw logits: of the sampled (or given) token with its rank, and of the top.

Ranks follow (logit, then lowest id), so every rank is taken once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.sampling.blocks import BlockedScores
from runtime.sampling.draw import row_chunks, sum_blocks
from runtime.step import Logprobs, TokenLogprob

F64Array = npt.NDArray[np.float64]
I64Array = npt.NDArray[np.int64]


def logprobs_of(
    scores: BlockedScores, index: Tensor, targets: Tensor, num_top: Sequence[int]
) -> list[Logprobs]:
    """Of the rows `index` [m]: each target's entry, then the `num_top[j]` most likely others.

    The target is listed once, in front, even when it is among the top ones.

    Args:
        targets: [m] int64
        num_top: [m]; -1 is the whole vocabulary.
    """
    vocab_size = scores.scores.shape[1]
    wanted = np.array([vocab_size if k < 0 else min(k, vocab_size) for k in num_top])
    log_mass, chosen, ranks = _whole_rows(scores, index, targets)
    out: list[Logprobs] = [
        [TokenLogprob(*entry)]
        for entry in zip(
            targets.tolist(), (chosen - log_mass).tolist(), ranks.tolist(), strict=True
        )
    ]
    if wanted.any():
        ids, values = _top(scores, index, wanted)
        for j, entries in enumerate(out):
            top = zip(ids[j].tolist(), (values[j] - log_mass[j]).tolist(), strict=True)
            given = entries[0].token_id
            entries.extend(TokenLogprob(t, x, r) for r, (t, x) in enumerate(top, 1) if t != given)
    return out


def _whole_rows(
    scores: BlockedScores, index: Tensor, targets: Tensor
) -> tuple[F64Array, F64Array, I64Array]:
    """[m] each: log of the sum of exp(logit), the target's logit, the target's rank."""
    log_mass = torch.empty(len(index), dtype=torch.float64, device=index.device)
    ranks = torch.empty_like(index)
    chosen = scores.scores[index, targets].float()
    ids = torch.arange(scores.scores.shape[1], device=index.device)
    for part in row_chunks(scores.scores, len(index)):
        x = scores.scores[index[part]].float()
        value, largest = chosen[part, None], scores.max[index[part], None]
        ahead = (x == value).logical_and_(ids < targets[part, None]).logical_or_(x > value)
        ranks[part] = ahead.sum(1) + 1
        mass = sum_blocks(x.sub_(largest).exp_()).sum(1, dtype=torch.float64)
        log_mass[part] = mass.log() + largest[:, 0]
    return log_mass.cpu().numpy(), chosen.double().cpu().numpy(), ranks.cpu().numpy()


def _top(
    scores: BlockedScores, index: Tensor, wanted: I64Array
) -> tuple[list[I64Array], list[F64Array]]:
    """Ids and logits of the `wanted[j]` first of each row, in the order of their ranks."""
    head = scores.head(index)
    candidates, bound = head.scores.cpu().numpy(), head.bound.cpu().numpy()
    candidate_ids = head.all_ids().cpu().numpy()
    ids: list[I64Array] = []
    values: list[F64Array] = []
    for j, k in enumerate(wanted.tolist()):
        row, of = candidates[j], candidate_ids[j]
        if k and _nth_largest(row, k) <= bound[j]:
            row = scores.scores[index[j]].float().cpu().numpy()
            of = np.arange(len(row))
        places = _first(row, k)
        ids.append(of[places])
        values.append(row[places].astype(np.float64))
    return ids, values


def _nth_largest(row: npt.NDArray[np.float32], k: int) -> float:
    return float(np.partition(row, len(row) - k)[len(row) - k]) if k <= len(row) else -np.inf


def _first(row: npt.NDArray[np.float32], k: int) -> I64Array:
    """Places of the k largest, equal ones by place."""
    if not k:
        return np.zeros(0, np.int64)
    places = np.flatnonzero(row >= _nth_largest(row, k))
    return places[np.argsort(-row[places], kind="stable")][:k]
