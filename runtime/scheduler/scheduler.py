"""Scheduler: which tokens run in the next step, and what a step's tokens mean for their requests.

There is no prefill phase and no decode phase: a request has num_computed_tokens, which chases its
known tokens. Chunks, prefix hits and resumption after a preemption all follow from that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from runtime.data.request import FinishReason, Request
from runtime.data.step import RequestOutput, RunnerOutput, SchedulerOutput
from runtime.errors import RequestError
from runtime.kv_cache import NUM_RESERVED_BLOCKS, BlockPool
from runtime.observe.steps import ScheduleNotes
from runtime.scheduler import limits
from runtime.scheduler.admission import PREEMPTED, Admission
from runtime.scheduler.ahead import (
    NEEDS_BLOCKS,
    MustWaitError,
    check_tokens_known,
    find_feeds,
    void,
)
from runtime.scheduler.draft import Draft, Flight
from runtime.scheduler.integrity import check_scheduler
from runtime.scheduler.keys import give_keys, give_late_keys
from runtime.scheduler.outputs import append_tokens, collect_prompt_logprobs
from runtime.scheduler.rows import NEVER, RowIndex, RowTable
from runtime.scheduler.running import take_by_arrays, take_in_order
from runtime.scheduler.state import SchedulerState
from runtime.scheduler.stats import SchedulerStats
from runtime.scheduler.waiting import make_queue

if TYPE_CHECKING:
    from runtime.config.sections import SchedulerConfig


class Scheduler:
    """Policy `mixed`: running requests first, then waiting ones, decodes and chunks side by side.

    Policy `prefill_first`: a step holds prompts only while there are any to run, else one decode
    step; a prompt is cut only where it exceeds the whole budget.

    A request holds a *row* while it runs. Per-step work is done on arrays over the rows; what is
    done one by one is what changed: admissions, block edges, full blocks, ends.

    With `runs_ahead`, a step may be made while the one before is in flight, for requests whose
    newest token is not known yet. How they end is decided when it is; what the later step gives to
    a request that has ended is dropped. Steps must run, and come back, in the order in which they
    were made: so blocks that a step in flight still writes may be freed, because only later steps
    write or read them for others. Nothing is preempted ahead of a step that may free blocks.

    Args:
        block_size: tokens of a KV block.
        num_blocks: usable blocks, the reserved ones excluded.
        max_model_len: most known tokens of a request, prompt and output.
        runs_ahead: schedule tokens that are not known yet; else a request sits out until its token
            has come back.

    Raises:
        ConfigError: for limits under which a request could never run.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        block_size: int,
        num_blocks: int,
        max_model_len: int,
        prefix_caching: bool = True,
        hash_name: str = "xxh3_128",
        runs_ahead: bool = False,
    ) -> None:
        limits.check_config(config, block_size, num_blocks, max_model_len)
        self.config = config
        self.pool = BlockPool(
            num_blocks + NUM_RESERVED_BLOCKS, block_size, prefix_caching, hash_name
        )
        self._cap = config.long_prefill_token_threshold or NEVER
        self._state = SchedulerState(
            pool=self.pool,
            table=RowTable(config.max_num_seqs),
            waiting=make_queue(config.order),
            stats=SchedulerStats(num_blocks=num_blocks),
            max_model_len=max_model_len,
            runs_ahead=runs_ahead,
        )
        self._admission = Admission(config, self._state)
        self._flights: dict[int, Flight] = {}
        self._next_step_id = 0
        self.notes = ScheduleNotes()
        """Of the newest step that `schedule` made."""

    @property
    def num_running(self) -> int:
        return len(self._state.order)

    @property
    def num_waiting(self) -> int:
        return len(self._state.waiting)

    @property
    def runs_ahead(self) -> bool:
        return self._state.runs_ahead

    @property
    def _is_ahead(self) -> bool:
        """Whether the next step is made before the last one has come back."""
        return self._state.runs_ahead and bool(self._flights)

    @property
    def stats(self) -> SchedulerStats:
        """The live counters."""
        self._state.stats.note_blocks(self.pool.num_used_blocks)
        return self._state.stats

    def request_ids(self, so: SchedulerOutput) -> tuple[str, ...]:
        """[B], of a step, before anything else is done here."""
        return tuple(request.request_id for request in self._state.table.requests[so.rows])

    def has_unfinished(self) -> bool:
        return bool(self._state.requests)

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls; slow, for tests and the debug flag."""
        check_scheduler(self._state)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestError: where it could never run, or its id is in use; nothing else is affected.
        """
        if request.request_id in self._state.requests:
            raise RequestError("request_id", f"{request.request_id!r} is already in use")
        limits.check_request(request, self._state.max_model_len, self.pool)
        self._state.requests[request.request_id] = request
        self._state.waiting.add(request)

    def finish(
        self,
        request_ids: Iterable[str],
        reason: FinishReason,
        stop_reason: int | str | None = None,
    ) -> list[RequestOutput]:
        """Ends requests at any moment, also while a step with them is under way.

        Unknown ids, and those of requests that have ended, are ignored.
        """
        outputs = []
        for request_id in request_ids:
            request = self._state.requests.get(request_id)
            if request is None:
                continue
            # Blocks that a step under way should fill may never be filled.
            for flight in self._flights.values():
                self.pool.drop_keys(flight.keyed_blocks.pop(request_id, ()))
            self._state.end(request, reason, stop_reason)
            outputs.append(RequestOutput(request, None, reason))
        self._state.close_gaps()
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False, and nothing is done, while blocks are in use."""
        return self.pool.reset_prefix_cache()

    def schedule(self) -> SchedulerOutput:
        """Makes the next step; num_reqs is 0 where nothing can run, or only once a step in flight
        has come back.

        Progress counts from here on: num_computed_tokens of its requests includes this step. Each
        step must come back to `update_from_output` or `fail_step`; an empty one need not.
        """
        draft = Draft(self.config.max_num_batched_tokens)
        try:
            self._fill(draft)
        except MustWaitError as wait:
            self._state.stats.wait_reasons[str(wait)] += 1
        return self._seal(draft)

    def update_from_output(self, so: SchedulerOutput, ro: RunnerOutput) -> list[RequestOutput]:
        """Appends a step's tokens, ends the requests that are done, frees what they held.

        Requests that have left since the step was scheduled are skipped.

        Returns:
            one output per sampled token, in the step's order; then those that ended by an error.
        """
        sampled = np.flatnonzero(so.samples)
        assert len(ro.token_ids) == len(sampled), "one token for each row that samples"
        state, flight = self._state, self._flights.pop(so.step_id)
        collect_prompt_logprobs(state, so, ro, flight)
        rows = flight.rows[sampled]
        alive = state.is_alive(rows, flight.epochs[sampled])
        if flight.is_void is not None:
            alive &= ~flight.is_void[sampled]
        failed = [(rows[i], error, i in ro.bad_kv) for i, error in ro.errors.items() if alive[i]]
        if ro.errors:
            alive[list(ro.errors)] = False
        logprobs = ro.logprobs or []
        if alive.all():
            outputs = append_tokens(state, rows, ro.token_ids, logprobs)
        else:
            kept = [entry for entry, is_kept in zip(logprobs, alive, strict=False) if is_kept]
            outputs = append_tokens(state, rows[alive], ro.token_ids[alive], kept)
        if self._is_ahead:
            [ahead] = self._flights.values()
            late = [index for index in ro.late if alive[index]]
            if late:
                void(state, ahead, rows[late])
            give_late_keys(state, rows[alive], ahead.keyed_blocks)
        for row, error, has_bad_kv in failed:
            outputs.append(state.end_with_error(state.table.requests[row], error, has_bad_kv))
        state.close_gaps()
        return outputs

    def fail_step(self, so: SchedulerOutput, error: str) -> list[RequestOutput]:
        """Ends the requests of a step that raised; drops the keys that the step had given.

        Steps that were made after it build on its K/V: they must be failed too, in order.
        The runner may not have come to dropping `so.freed_rows`: they are reported again.
        """
        state, flight = self._state, self._flights.pop(so.step_id)
        for block_ids in flight.keyed_blocks.values():
            self.pool.drop_keys(block_ids)
        state.freed_rows = [*so.freed_rows, *state.freed_rows]
        state.blocks_to_clear += so.blocks_to_clear
        alive = state.is_alive(so.rows, flight.epochs)
        requests = state.table.requests[so.rows[alive]].tolist()
        held = [block_id for request in requests for block_id in request.block_ids]
        outputs = [state.end_with_error(request, error) for request in requests]
        # What the step should have written may be anything; blocks of earlier steps have keys.
        state.clear_later(b for b in held if self.pool.key_of(b) is None)
        state.close_gaps()
        return outputs

    def _fill(self, draft: Draft) -> None:
        """Raises MustWaitError, with nothing done."""
        if self._is_ahead:
            assert len(self._flights) == 1, "one step may be in flight"
            check_tokens_known(self._state)
        if self.config.policy == "mixed":
            has_preempted = self._run(self._state.order, draft)
            if not has_preempted:
                self._admission.admit(draft)
            elif len(self._state.waiting):
                draft.held_back = PREEMPTED
        else:
            self._run(self._rows_in_prefill(), draft)
            self._admission.admit(draft)
            if draft.is_empty:
                self._run(self._state.order, draft)

    def _run(self, rows: RowIndex, draft: Draft) -> bool:
        """Schedules running requests; True where one of them had to be preempted."""
        if not rows.size:
            return False
        state, budget = self._state, draft.budget_left
        taken = take_by_arrays(state.table, self.pool, rows, budget, self._cap)
        if taken is None:
            if self._is_ahead:
                raise MustWaitError(NEEDS_BLOCKS)
            taken = take_in_order(
                state.table, self.pool, rows, budget, self._cap, self._choose_victim, state.preempt
            )
            state.close_gaps()
        draft.add_running(taken)
        give_keys(state, taken, draft)
        return taken.has_preempted

    def _rows_in_prefill(self) -> RowIndex:
        table, rows = self._state.table, self._state.order
        computed = table.num_computed[rows]
        is_in_prefill = table.num_tokens[rows] - computed > 1
        is_in_prefill |= computed < table.num_prompt[rows]
        in_prefill: RowIndex = rows[is_in_prefill]
        return in_prefill

    def _choose_victim(self, rows: list[int]) -> int:
        """Index of the one to preempt: the last, or of the lowest priority the latest arrival."""
        if self.config.order == "fcfs":
            return len(rows) - 1
        requests = self._state.table.requests[rows].tolist()
        return max(range(len(rows)), key=lambda i: (requests[i].priority, requests[i].arrival_s, i))

    def _seal(self, draft: Draft) -> SchedulerOutput:
        """Makes the output, and advances progress."""
        state, table = self._state, self._state.table
        if draft.is_empty:
            # Freed rows wait for a step that a runner will see.
            none = np.empty(0, np.int32)
            return SchedulerOutput(
                self._next_step_id, none, none, none, np.empty(0, np.bool_), (), (), ()
            )
        rows, computed, counts = draft.columns()
        ends = computed + counts
        table.num_computed[rows] = ends
        samples = ends == table.num_expected[rows]
        feeds = None
        if state.runs_ahead:
            table.num_expected[rows[samples]] += 1
            if self._flights:
                feeds = find_feeds(state, rows, ends)
                state.stats.steps_ahead += 1
        is_decode = (counts == 1) & (computed >= table.num_prompt[rows])
        state.stats.note_step(int(counts.sum()), bool(is_decode.any() and not is_decode.all()))
        state.stats.note_blocks(self.pool.num_used_blocks)
        so = SchedulerOutput(
            step_id=self._next_step_id,
            rows=rows.astype(np.int32),
            num_scheduled_tokens=counts,
            num_computed_tokens=computed,
            samples=samples,
            freed_rows=tuple(dict.fromkeys(state.freed_rows)),
            new_rows=tuple(draft.new_rows),
            new_block_ids=tuple(draft.new_blocks),
            blocks_to_clear=tuple(dict.fromkeys(state.blocks_to_clear)),
            feeds=feeds,
        )
        self._flights[so.step_id] = Flight(rows, table.epoch[rows], draft.keyed_blocks)
        self._next_step_id += 1
        self.notes = ScheduleNotes(tuple(state.preempted), draft.held_back)
        state.freed_rows, state.blocks_to_clear, state.preempted = [], [], []
        return so
