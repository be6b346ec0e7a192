"""Counts of values by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


class Histogram:
    """Counts of values by bucket; many values cost hardly more than one."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0

    def add(self, values: Iterable[float | None]) -> None:
        """Count values; None is none."""
        found = np.array([v for v in values if v is not None], float)
        places = np.searchsorted(self._bounds, found)  # a bound belongs to its own bucket
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._sum += float(found.sum())

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, values up to it), the last bound +Inf; and the sum of all values."""
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        totals = np.cumsum(self._counts).tolist()
        return [(name, float(n)) for name, n in zip(names, totals, strict=True)], self._sum
