"""SchedulerState: what the parts of the scheduler share, and how a request leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.data.request import FinishReason, Request, RequestStatus
from runtime.data.step import BoolArray, IntArray, Logprobs, RequestOutput
from runtime.kv_cache import BlockPool
from runtime.observe.steps import Preemption
from runtime.scheduler.rows import RowIndex, RowTable
from runtime.scheduler.stats import SchedulerStats
from runtime.scheduler.waiting import WaitingQueue


@dataclass(slots=True)
class SchedulerState:
    """Every request that has not ended is in `requests`, and either holds a row or waits."""

    pool: BlockPool
    table: RowTable
    waiting: WaitingQueue
    stats: SchedulerStats
    max_model_len: int
    runs_ahead: bool = False
    order: RowIndex = field(default_factory=lambda: np.empty(0, np.intp))
    """Running rows in running order: by admission."""
    requests: dict[str, Request] = field(default_factory=dict)
    freed_rows: list[int] = field(default_factory=list)
    """Not yet reported to the runner."""
    blocks_to_clear: list[int] = field(default_factory=list)
    """Free blocks with K/V that may be not finite; not yet reported to the runner."""
    lost_tokens: dict[str, int] = field(default_factory=dict)
    """request_id -> computed tokens that its preemption threw away, until it is back."""
    preempted: list[Preemption] = field(default_factory=list)
    """Not yet told with a step."""
    prompt_logprobs: dict[str, list[Logprobs]] = field(default_factory=dict)
    """request_id -> so far; handed out whole with the first token."""

    def is_alive(self, rows: IntArray | RowIndex, epochs: npt.NDArray[np.int64]) -> BoolArray:
        """Which rows are still held by the request that held them when `epochs` were read."""
        alive: BoolArray = self.table.is_held[rows] & (self.table.epoch[rows] == epochs)
        return alive

    def preempt(self, row: int, reason: str) -> None:
        """Takes row and blocks from a request, which waits to run again; its keys stay."""
        request = self.table.requests[row]
        self._leave_row(request)
        lost = request.num_computed_tokens
        self.preempted.append(Preemption(request.request_id, lost, reason))
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.lost_tokens[request.request_id] = request.num_computed_tokens
        request.num_computed_tokens = 0
        self.stats.preemptions += 1
        self.waiting.put_back(request)

    def end(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """Ends a request, running or waiting; `close_gaps` must follow."""
        if request.row >= 0:
            self._leave_row(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        del self.requests[request.request_id]
        self.lost_tokens.pop(request.request_id, None)

    def end_with_error(
        self, request: Request, error: str, has_bad_kv: bool = False
    ) -> RequestOutput:
        """With `has_bad_kv` nobody finds its blocks again, and they are cleared."""
        request.error = error
        block_ids = request.block_ids
        if has_bad_kv:
            self.pool.drop_keys(block_ids)
        self.end(request, FinishReason.ERROR)
        if has_bad_kv:
            self.clear_later(block_ids)
        return RequestOutput(request, None, FinishReason.ERROR)

    def clear_later(self, block_ids: Iterable[int]) -> None:
        """Has those of the blocks that nobody holds zeroed before they are written again."""
        self.blocks_to_clear += [b for b in block_ids if not self.pool.ref_count(b)]

    def close_gaps(self) -> None:
        """Takes rows that were freed out of the running order; before any row is taken again."""
        self.order = self.order[self.table.is_held[self.order]]

    def _leave_row(self, request: Request) -> None:
        self.pool.free(request.block_ids)
        request.block_ids = []
        self.freed_rows.append(request.row)
        self.table.release(request.row)
        self.prompt_logprobs.pop(request.request_id, None)
