"""Which kernel multiplies: chosen by rates measured on this machine, once for a whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from runtime.ops.native.rates import PathRates

TILES = "tiles"


class Paths(NamedTuple):
    """The kernel for a number of rows. Only AMX tiles make it depend on that number."""

    base: str = "float"
    tiles_from: int | None = None
    """Rows from which tiles multiply; None: never"""

    def of(self, rows: int) -> str:
        """The path of a call with so many rows."""
        return self.base if self.tiles_from is None or rows < self.tiles_from else TILES


def choose_paths(rates: Mapping[str, PathRates], wanted: str = "auto") -> Paths:
    """The fastest by the mean of its rates' logarithms, so that every number of rows counts alike;
    tiles from where they stay faster than that.

    Args:
        rates: of the paths that run here; without any, float multiply-adds.
        wanted: a path that is taken wherever it runs, for debugging; or "auto".
    """
    if wanted == TILES and TILES in rates:
        return Paths("float", 0)
    if wanted in rates:
        return Paths(wanted)
    base = max(
        (path for path in rates if path != TILES),
        key=lambda path: sum(map(math.log, rates[path].by_rows.values())),
        default="float",
    )
    return Paths(base, _tiles_from(rates, base))


def _tiles_from(rates: Mapping[str, PathRates], base: str) -> int | None:
    if TILES not in rates or base not in rates:
        return None
    found = None
    for rows, rate in sorted(rates[TILES].by_rows.items(), reverse=True):
        if rate <= rates[base].by_rows[rows]:
            break
        found = rows
    return found
