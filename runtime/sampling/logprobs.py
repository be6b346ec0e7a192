"""Log-probabilities of raw logits: of the sampled (or given) token with its rank, and of the top.

Ranks follow (logit, then lowest id), so every rank is taken once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.step import Logprobs, TokenLogprob
from runtime.sampling.blocks import BlockedScores, Head
from runtime.sampling.draw import chunks_with_scratch, shifted_rows, sum_blocks

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
    head = scores.head(index)
    log_mass, chosen = _log_mass(scores, index), _of_targets(scores, index, targets)
    ranks = _ranks(scores, head, index, targets)
    chosen_logprobs = (chosen.double() - log_mass).tolist()
    out: list[Logprobs] = [
        [TokenLogprob(*entry)]
        for entry in zip(targets.tolist(), chosen_logprobs, ranks.tolist(), strict=True)
    ]
    if wanted.any():
        for entries, top in zip(out, _top(scores, head, index, wanted, log_mass), strict=True):
            given = entries[0].token_id
            entries.extend(TokenLogprob(t, x, r) for r, (t, x) in enumerate(top, 1) if t != given)
    return out


def _log_mass(scores: BlockedScores, index: Tensor) -> Tensor:
    """[m] float64: log of the sum of exp(logit)."""
    out = torch.empty(len(index), dtype=torch.float64, device=index.device)
    for part, scratch in chunks_with_scratch(scores.scores, len(index)):
        weights = shifted_rows(scores, index[part], scratch).exp_()
        out[part] = sum_blocks(weights).sum(1, dtype=torch.float64).log_()
    return out + scores.max[index]


def _of_targets(scores: BlockedScores, index: Tensor, targets: Tensor) -> Tensor:
    return scores.scores[index, targets].float()


def _ranks(scores: BlockedScores, head: Head, index: Tensor, targets: Tensor) -> Tensor:
    """[m] from 1; the head knows them where the target is in its exact part."""
    values = _of_targets(scores, index, targets)[:, None]
    ahead = (head.scores == values).logical_and_(head.all_ids() < targets[:, None])
    ranks = ahead.logical_or_(head.scores > values).sum(1) + 1
    for j in (values[:, 0] <= head.bound).nonzero()[:, 0].tolist():
        row, target = scores.scores[index[j]], targets[j]
        ranks[j] = 1 + (row > row[target]).sum() + (row[:target] == row[target]).sum()
    return ranks


def _top(
    scores: BlockedScores, head: Head, index: Tensor, wanted: I64Array, log_mass: Tensor
) -> Iterator[list[tuple[int, float]]]:
    """The `wanted[j]` first (id, log-probability) of each row, in the order of their ranks."""
    candidates, bound = head.scores.cpu().numpy(), head.bound.cpu().numpy()
    candidate_ids, log_masses = head.all_ids().cpu().numpy(), log_mass.tolist()
    for j, k in enumerate(wanted.tolist()):
        row, ids = candidates[j], candidate_ids[j]
        if k and _nth_largest(row, k) <= bound[j]:
            row = scores.scores[index[j]].float().cpu().numpy()
            ids = np.arange(len(row))
        places = _first(row, k)
        logprobs = row[places].astype(np.float64) - log_masses[j]
        yield list(zip(ids[places].tolist(), logprobs.tolist(), strict=True))


def _nth_largest(row: npt.NDArray[np.float32], k: int) -> float:
    return float(np.partition(row, len(row) - k)[len(row) - k]) if k <= len(row) else -np.inf


def _first(row: npt.NDArray[np.float32], k: int) -> I64Array:
    """Places of the k largest, equal ones by place."""
    if not k:
        return np.zeros(0, np.int64)
    places = np.flatnonzero(row >= _nth_largest(row, k))
    return places[np.argsort(-row[places], kind="stable")][:k]
