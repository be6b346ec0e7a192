"""What must hold in the scheduler between any two calls."""

from __future__ import annotations

from runtime.data.request import Request, RequestStatus
from runtime.kv_cache import BlockPool
from runtime.scheduler.rows import NEVER, RowTable
from runtime.scheduler.state import SchedulerState


def check_scheduler(state: SchedulerState) -> None:
    """Asserts that rows, queues, requests and pool agree."""
    table, waiting = state.table, state.waiting
    rows = state.order.tolist()
    assert len(set(rows)) == len(rows), "a row runs twice"
    assert sorted(rows) == table.is_held.nonzero()[0].tolist(), "running rows are not the held ones"
    assert len(rows) + table.num_free == len(table.is_held), "rows lost"
    running = [table.requests[row] for row in rows]
    queued = list(waiting)
    assert len(queued) == len(waiting), "waiting queue: wrong length"
    ids = [request.request_id for request in running + queued]
    assert len(set(ids)) == len(ids), "a request is in two places"
    assert set(ids) == set(state.requests), "a request is in no place, or ended and still in one"
    for request in queued:
        _check_waiting(request)
    for row, request in zip(rows, running, strict=True):
        _check_row(table, row, state.pool, request)
    state.pool.check_integrity(request.block_ids for request in running)


def _check_waiting(request: Request) -> None:
    name = request.request_id
    assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), f"{name}: status"
    assert request.row == -1, f"{name} waits and holds a row"
    assert not request.block_ids, f"{name} waits and holds blocks"
    assert request.num_computed_tokens == 0, f"{name} waits and has progress"


def _check_row(table: RowTable, row: int, pool: BlockPool, request: Request) -> None:
    name, size = request.request_id, pool.block_size
    computed, num_tokens = int(table.num_computed[row]), int(table.num_tokens[row])
    expected, limit = int(table.num_expected[row]), int(table.limit[row])
    assert request.status is RequestStatus.RUNNING, f"{name}: status {request.status}"
    assert request.row == row, f"{name}: row {request.row} in row {row}"
    assert num_tokens == request.num_tokens < limit, f"{name}: known tokens"
    assert num_tokens <= expected <= limit, f"{name}: {expected} tokens expected, {limit} allowed"
    assert 0 <= computed <= expected, f"{name}: {computed} computed of {expected}"
    capacity = len(request.block_ids) * size
    assert table.capacity[row] == capacity, f"{name}: capacity"
    assert computed <= capacity < expected + size, f"{name}: {capacity} slots, {expected} tokens"
    assert len(set(request.block_ids)) == len(request.block_ids), f"{name} holds a block twice"
    is_keyed = table.next_key[row] != NEVER
    num_full = min(computed, num_tokens) // size
    if is_keyed:
        assert table.next_key[row] == (num_full + 1) * size, f"{name}: next_key"
    for index, block_id in enumerate(request.block_ids):
        key = pool.key_of(block_id)
        if key is not None:
            assert index < num_full, f"{name}: block {index} has a key and is not full"
            assert key == request.block_keys[index], f"{name}: block {index} has another's key"
