"""Tokens and blocks for running requests: one way by arrays, and its slow twin, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from runtime.data.step import IntArray
from runtime.kv_cache import BlockPool
from runtime.scheduler.rows import RowIndex, RowTable

NewBlocks = list[tuple[int, list[int]]]
"""(row, block ids that were appended to it)"""


@dataclass(slots=True)
class Taken:
    """What running requests get in this step."""

    rows: RowIndex
    """[B], in running order."""
    num_computed: IntArray
    """[B], before this step."""
    num_scheduled: IntArray
    """[B], each >= 1."""
    new_blocks: NewBlocks = field(default_factory=list)
    has_preempted: bool = False


def take_by_arrays(
    table: RowTable, pool: BlockPool, rows: RowIndex, budget: int, cap: int
) -> Taken | None:
    """Gives each row min(missing tokens, budget left, cap), in order, and the blocks for them.

    Args:
        rows: running order.
        budget: tokens left in this step.
        cap: most tokens of one request.

    Returns:
        None, with nothing done, where the blocks do not all fit: then someone must be preempted.
    """
    computed = table.num_computed[rows]
    count = np.minimum(table.num_expected[rows], table.limit[rows] - 1)
    count -= computed
    np.minimum(count, cap, out=count)
    if count.sum() > budget:
        before = np.cumsum(count) - count
        np.clip(budget - before, 0, count, out=count)
    if not count.all():
        keep = count > 0
        rows, computed, count = rows[keep], computed[keep], count[keep]
    taken = Taken(rows, computed, count)
    short = np.flatnonzero(computed + count > table.capacity[rows])
    if short.size:
        lacking = (computed + count - table.capacity[rows])[short]
        needs = -(-lacking // pool.block_size)
        if needs.sum() > pool.num_free_blocks:
            return None
        for row, need in zip(rows[short].tolist(), needs.tolist(), strict=True):
            taken.new_blocks.append((row, grow(table, pool, row, need)))
    return taken


def take_in_order(
    table: RowTable,
    pool: BlockPool,
    rows: RowIndex,
    budget: int,
    cap: int,
    choose_victim: Callable[[list[int]], int],
    preempt: Callable[[int, str], None],
) -> Taken:
    """The same, one row after another, preempting where blocks do not fit.

    Args:
        choose_victim: an index into the rows that still run.
        preempt: frees a row and its blocks, for a reason.
    """
    order: list[int] = rows.tolist()
    counts: dict[int, int] = {}
    blocks: dict[int, list[int]] = {}
    has_preempted = False
    position = 0
    while position < len(order) and budget > 0:
        row = order[position]
        computed = int(table.num_computed[row])
        wanted = min(int(table.num_expected[row]), int(table.limit[row]) - 1) - computed
        count = min(wanted, cap, budget)
        need = max(0, -(-(computed + count - int(table.capacity[row])) // pool.block_size))
        if need <= pool.num_free_blocks:
            if need:
                blocks[row] = grow(table, pool, row, need)
            if count > 0:
                counts[row] = count
                budget -= count
            position += 1
            continue
        index = choose_victim(order)
        victim = order.pop(index)
        needing = table.requests[row].request_id
        preempt(victim, f"{needing} needs {need} blocks, {pool.num_free_blocks} are free")
        has_preempted = True
        budget += counts.pop(victim, 0)
        position -= index < position
    taken_rows = np.array([row for row in order if row in counts], np.intp)
    return Taken(
        taken_rows,
        table.num_computed[taken_rows],
        np.array([counts[row] for row in taken_rows.tolist()], np.int32),
        [(row, blocks[row]) for row in taken_rows.tolist() if row in blocks],
        has_preempted,
    )


def grow(table: RowTable, pool: BlockPool, row: int, count: int) -> list[int]:
    """Appends `count` new blocks to a row; they must be free."""
    block_ids = pool.allocate(count)
    table.requests[row].block_ids += block_ids
    table.capacity[row] += count * pool.block_size
    return block_ids
