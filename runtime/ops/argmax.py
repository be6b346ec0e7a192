"""The largest score of each row."""

from __future__ import annotations

from torch import Tensor


def argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The id and the value of each row's largest score.

    Args:
        scores: [S, V], any float type.

    Returns:
        [S] int64, the lowest id where several are equal, any id in a row that holds NaN; and [S]
        float32, NaN in such a row.
    """
    ids = scores.argmax(-1, keepdim=True)
    return ids[:, 0], scores.gather(1, ids)[:, 0].float()
