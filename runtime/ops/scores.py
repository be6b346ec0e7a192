"""The largest scores of rows of logits. A NaN is larger than any number, as in torch."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_NATIVE = 64
"""Scores of a row that the native top-k keeps in a heap; more are left to torch."""


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest score of each row, and the lowest id that has it.

    Args:
        logits: [S, V], any float type.

    Returns:
        [S] float32 scores and [S] int64 ids.
    """
    ids = logits.argmax(-1)
    return logits.gather(1, ids[:, None])[:, 0].float(), ids


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores of each row, the best first; of equal ones the lowest id first.

    Args:
        logits: [S, V], any float type.
        count: at most V.

    Returns:
        [S, count] float32 scores and int64 ids.
    """
    values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    return values[:, :count].float(), ids[:, :count]
