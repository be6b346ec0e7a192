"""Keys for the blocks that a step fills, once each."""

from __future__ import annotations

import numpy as np

from runtime.data.step import IntArray
from runtime.scheduler.draft import Draft, KeyedBlocks
from runtime.scheduler.rows import NEVER, RowIndex
from runtime.scheduler.running import Taken
from runtime.scheduler.state import SchedulerState


def give_keys(state: SchedulerState, taken: Taken, draft: Draft) -> None:
    """Gives keys to the blocks of running requests that this step fills with known tokens."""
    _give_due(state, taken.rows, taken.num_computed + taken.num_scheduled, draft.keyed_blocks)


def give_late_keys(state: SchedulerState, rows: RowIndex, keyed: KeyedBlocks) -> None:
    """Gives keys to blocks that became full of known tokens only now, after the step that fills
    them was scheduled.

    Args:
        rows: that got a token.
        keyed: of that step.
    """
    rows = rows[state.table.is_held[rows]]
    _give_due(state, rows, state.table.num_computed[rows], keyed)


def _give_due(state: SchedulerState, rows: RowIndex, ends: IntArray, keyed: KeyedBlocks) -> None:
    due = ends >= state.table.next_key[rows]
    if due.any():
        rows = rows[due]
        ends = np.minimum(ends[due], state.table.num_tokens[rows])
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            give_row_keys(state, row, end, keyed)


def give_row_keys(state: SchedulerState, row: int, end: int, keyed: KeyedBlocks) -> None:
    """Gives keys to a row's full blocks among its first `end` tokens, each of them known.

    From here on others may share them, in the same step too: K/V of all of a step's tokens are
    written before any of them is read.
    """
    table, size = state.table, state.pool.block_size
    next_key = int(table.next_key[row])
    if end < next_key:
        return
    request, tail = table.requests[row], table.tails[row]
    first, last = next_key // size - 1, end // size
    for index in range(first, last):
        assert tail is not None, "a row whose chain was broken is due no key"
        tail = state.pool.register(request, index, tail)
        if tail is None:
            break
        keyed.setdefault(request.request_id, []).append(request.block_ids[index])
    table.tails[row] = tail
    table.next_key[row] = NEVER if tail is None else (last + 1) * size
