"""Running ahead: steps that are made while the tokens of the one before are not known yet."""

from __future__ import annotations

import numpy as np

from runtime.data.step import BoolArray, IntArray
from runtime.scheduler.draft import Flight
from runtime.scheduler.rows import RowIndex
from runtime.scheduler.state import SchedulerState

NEEDS_TOKENS = "a request needs its token on the host first"
NEEDS_BLOCKS = "the KV blocks do not fit"


class MustWaitError(Exception):
    """The next step cannot be made before the one in flight has come back; says why."""


def check_tokens_known(state: SchedulerState) -> None:
    """Raises MustWaitError where the next token of a request depends on one that is not known."""
    table, rows = state.table, state.order
    expected = table.num_expected[rows]
    would_run = (expected > table.num_tokens[rows]) & (expected < table.limit[rows])
    if (would_run & table.needs_tokens[rows]).any():
        raise MustWaitError(NEEDS_TOKENS)


def find_feeds(state: SchedulerState, rows: RowIndex, ends: IntArray) -> BoolArray | None:
    """See `SchedulerOutput.feeds`.

    Args:
        ends: [B], computed tokens of `rows` after the step.
    """
    feeds: BoolArray = ends > state.table.num_tokens[rows]
    return feeds if feeds.any() else None


def void(state: SchedulerState, flight: Flight, rows: RowIndex) -> None:
    """Takes back what the step in flight does for rows that it fed a wrong token: it will be run
    again, now that it is known."""
    flight.is_void = state.is_alive(flight.rows, flight.epochs) & np.isin(flight.rows, rows)
    void_rows = flight.rows[flight.is_void]
    state.table.num_computed[void_rows] -= 1
    state.table.num_expected[void_rows] -= 1
