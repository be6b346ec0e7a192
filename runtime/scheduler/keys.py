"""Keys for the blocks that a step fills, once each."""

from __future__ import annotations

from runtime.scheduler.draft import Draft
from runtime.scheduler.rows import NEVER
from runtime.scheduler.running import Taken
from runtime.scheduler.state import SchedulerState


def give_keys(state: SchedulerState, taken: Taken, draft: Draft) -> None:
    """Gives keys to the blocks of running requests that this step fills."""
    ends = taken.num_computed + taken.num_scheduled
    due = ends >= state.table.next_key[taken.rows]
    if due.any():
        for row, end in zip(taken.rows[due].tolist(), ends[due].tolist(), strict=True):
            give_row_keys(state, row, end, draft)


def give_row_keys(state: SchedulerState, row: int, end: int, draft: Draft) -> None:
    """Gives keys to a row's full blocks among its first `end` tokens, each of them known.

    From here on others may share them, in the same step too: K/V of all of a step's tokens are
    written before any of them is read.
    """
    table, size = state.table, state.pool.block_size
    if end < table.next_key[row]:
        return
    request, tail = table.requests[row], table.tails[row]
    first, last = int(table.next_key[row]) // size - 1, end // size
    for index in range(first, last):
        assert tail is not None, "a row whose chain was broken is due no key"
        tail = state.pool.register(request, index, tail)
        if tail is None:
            break
        draft.keyed_blocks.setdefault(request.request_id, []).append(request.block_ids[index])
    table.tails[row] = tail
    table.next_key[row] = NEVER if tail is None else (last + 1) * size
