"""Bucket sizes: which padded sizes there are, and which one serves n."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphs._keys import GraphError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sorted sizes and the table that answers a look-up."""

    sizes: tuple[int, ...]
    """ascending, unique; empty where graphs are off"""
    table: tuple[int, ...]
    """table[n] is the smallest size >= n, for n in 0..largest"""

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Buckets:
        """Buckets of positive sizes in any order, with or without duplicates."""
        ascending = tuple(sorted(set(sizes)))
        table: list[int] = []
        for size in ascending:
            table += [size] * (size + 1 - len(table))
        return cls(ascending, tuple(table))

    @property
    def largest(self) -> int:
        """0 where there is no size."""
        return self.sizes[-1] if self.sizes else 0

    def pad(self, n: int) -> int | None:
        """The smallest size >= n; None above the largest."""
        return self.table[n] if n < len(self.table) else None


def decode_sizes(max_num_reqs: int) -> list[int]:
    """1, 2, 4, 8, 16, 24 .. in steps of 8 up to 256 and of 32 above, and max_num_reqs itself."""
    grid = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_reqs, 32)]
    return [size for size in grid if size < max_num_reqs] + [max_num_reqs]


def token_sizes(max_num_tokens: int) -> list[int]:
    """16, 32, 64, 128, 256, 512, 768 .. in steps of 256 up to 4096 and of 1024 above, and
    max_num_tokens itself."""
    grid = [16, 32, 64, 128, *range(256, 4096, 256), *range(4096, max_num_tokens, 1024)]
    return [size for size in grid if size < max_num_tokens and size != 384] + [max_num_tokens]


def kv_class_sizes(max_model_len: int) -> list[int]:
    """1024, 2048, 4096 .. and max_model_len: the bounds of seq_lens that a backend bakes into its
    graphs."""
    sizes = [max_model_len]
    size = 1024
    while size < max_model_len:
        sizes.append(size)
        size *= 2
    return sizes


def normalise_sizes(sizes: Sequence[int], maximum: int, what: str) -> list[int]:
    """The user's sizes that fit below the maximum, with the maximum itself; sorted, unique.

    Args:
        sizes: as configured under `graphs.sizes`, in any order, duplicates allowed.
        maximum: the largest number that a step can have.
        what: names the maximum in messages, such as `scheduler.max_num_seqs`.

    Returns:
        Empty, after a warning, where no size fits: graphs of this kind are off then.

    Raises:
        GraphError: a size is no positive int.
    """
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise GraphError(f"graphs.sizes: {size!r} is no bucket size; sizes are ints from 1 up")
    fitting = {size for size in sizes if size <= maximum}
    if not fitting:
        logger.warning(
            "graphs.sizes: none of %s is within %s = %d; graphs are off for these steps",
            list(sizes),
            what,
            maximum,
        )
        return []
    return sorted(fitting | {maximum})
