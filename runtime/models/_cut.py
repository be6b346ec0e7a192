"""Cut: how a checkpoint's tensor may be divided among the ranks of tensor parallelism."""

from __future__ import annotations

from typing import NamedTuple


class Cut(NamedTuple):
    """Each rank holds a run of whole units along an axis, or everything.

    Column parallel is axis 0 (outputs: heads, inner channels), row parallel axis 1 (inputs; the
    ranks' products are summed), vocabulary parallel axis 0 with a shorter last run.
    """

    axis: int | None = None
    """None: every rank holds the whole tensor"""
    num_units: int = 1
    """equal pieces along the axis that stay whole: heads, blocks that share a scale, or elements"""
    repeats: bool = False
    """Fewer units than ranks: neighbours hold the same one (KV heads)."""
    is_ragged: bool = False
    """The last rank may hold fewer (vocabulary)."""

    def span(self, size: int, rank: int, world_size: int) -> slice:
        """What a rank holds of `size` elements along the axis.

        Raises:
            ValueError: units that cannot be divided among so many ranks, or elements into so many
                units; names both numbers.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if self.axis is None or world_size == 1:
            return slice(0, size)
        unit = size // self.num_units
        if unit * self.num_units != size:
            raise ValueError(f"{size} elements cannot be divided into {self.num_units} units")
        if self.is_ragged:
            count = -(-self.num_units // world_size)
            first = min(rank * count, self.num_units)
            last = min(first + count, self.num_units)
        elif self.num_units % world_size == 0:
            count = self.num_units // world_size
            first, last = rank * count, (rank + 1) * count
        elif self.repeats and world_size % self.num_units == 0:
            first = rank * self.num_units // world_size
            last = first + 1
        else:
            raise ValueError(f"{self.num_units} units cannot be divided among {world_size} ranks")
        return slice(first * unit, last * unit)


WHOLE = Cut()
