"""Draft: the step that is being made. Flight: what is remembered of it until it has run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.data.step import BoolArray, IntArray, NewRow
from runtime.scheduler.rows import RowIndex
from runtime.scheduler.running import NewBlocks, Taken

KeyedBlocks = dict[str, list[int]]
"""request_id -> blocks that were given their key in one step"""


@dataclass(slots=True)
class Flight:
    """A step that was scheduled and has neither succeeded nor failed yet."""

    rows: RowIndex
    """[B]"""
    epochs: npt.NDArray[np.int64]
    """[B], of the step's rows: who has left since has another, or holds its row no more."""
    keyed_blocks: KeyedBlocks
    is_void: BoolArray | None = None
    """[B], True where the step was fed a wrong token: the result is dropped, the request runs on;
    None where it never was."""


@dataclass(slots=True)
class Draft:
    """Collects running requests, then admitted ones."""

    budget_left: int
    keyed_blocks: KeyedBlocks = field(default_factory=dict)
    new_blocks: NewBlocks = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    held_back: str = ""
    """Why the first waiting request was not admitted; "" where none waits."""
    _parts: list[tuple[RowIndex, IntArray, IntArray]] = field(default_factory=list)

    def add_running(self, taken: Taken) -> None:
        self._parts.append((taken.rows, taken.num_computed, taken.num_scheduled))
        self.new_blocks += taken.new_blocks
        self.budget_left -= int(taken.num_scheduled.sum())

    def add_admitted(self, new: NewRow, count: int) -> None:
        self.new_rows.append(new)
        self._parts.append(
            (
                np.array([new.row], np.intp),
                np.array([new.num_computed_tokens], np.int32),
                np.array([count], np.int32),
            )
        )
        self.budget_left -= count

    def admitted(self) -> RowIndex:
        return np.array([new.row for new in self.new_rows], np.intp)

    def columns(self) -> tuple[RowIndex, IntArray, IntArray]:
        """Rows, computed tokens before the step, scheduled tokens; [B] each."""
        if len(self._parts) == 1:
            return self._parts[0]
        rows, computed, counts = zip(*self._parts, strict=True)
        return np.concatenate(rows), np.concatenate(computed), np.concatenate(counts)

    @property
    def is_empty(self) -> bool:
        return not any(rows.size for rows, _, _ in self._parts)
