"""Admission: waiting requests into rows, strictly in order."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from runtime.data.params import SamplingParams
from runtime.data.request import Request, RequestStatus
from runtime.data.step import NewRow
from runtime.kv_cache import PrefixHit
from runtime.scheduler.draft import Draft
from runtime.scheduler.keys import give_row_keys
from runtime.scheduler.rows import NEVER
from runtime.scheduler.state import SchedulerState

if TYPE_CHECKING:
    from runtime.config.sections import SchedulerConfig

NO_BUDGET = "the token budget was spent on requests before it"
NO_ROW = "every row was held: scheduler.max_num_seqs"
NO_ROOM = "its prompt runs whole, and the budget that was left is smaller"
NO_BLOCKS = "KV blocks for all of its tokens were not free"
PREEMPTED = "a running request had to be preempted in this step"


class Admission:
    """Admits a request if blocks for every known token of it fit, and then gives it all of them.

    So a prompt that runs in chunks never fights for its own blocks, and is not admitted only to be
    preempted at its second chunk.
    """

    def __init__(self, config: SchedulerConfig, state: SchedulerState) -> None:
        self._state = state
        self._budget = config.max_num_batched_tokens
        self._cap = config.long_prefill_token_threshold or NEVER
        self._may_cut_to_fit = config.policy == "mixed" and config.chunked_prefill
        self._watermark_blocks = math.ceil(config.watermark * state.pool.num_usable_blocks)
        self._blocked: tuple[Request, int] | None = None
        """A head that lacked blocks, and pool.num_changes before which it still will."""

    def admit(self, draft: Draft) -> None:
        """Admits requests while budget, rows and blocks last."""
        state = self._state
        while len(state.waiting):
            draft.held_back = self._admit_head(state.waiting.head(), draft)
            if draft.held_back:
                break
        if draft.new_rows:
            state.order = np.concatenate([state.order, draft.admitted()])

    def _admit_head(self, request: Request, draft: Draft) -> str:
        """Why the request must wait; "" where it was admitted."""
        pool = self._state.pool
        if draft.budget_left <= 0:
            return NO_BUDGET
        if not self._state.table.num_free:
            return NO_ROW
        is_alone = not len(self._state.order) and not draft.new_rows
        if not is_alone and self._is_still_blocked(request):
            return NO_BLOCKS
        hit = self._find_prefix(request)
        num_cached = len(hit.block_ids) * pool.block_size
        count = self._count_to_run(request.num_tokens - num_cached, draft.budget_left)
        if count == 0:
            return NO_ROOM
        num_new = -(-request.num_tokens // pool.block_size) - len(hit.block_ids)
        # Alone, a request may use every block: else one larger than the rest would wait for ever.
        reserve = 0 if is_alone else self._watermark_blocks
        lacking = num_new + pool.count_free(hit.block_ids) + reserve - pool.num_free_blocks
        if lacking > 0:
            self._blocked = (request, pool.num_changes + lacking)
            return NO_BLOCKS
        self._state.waiting.remove(request)
        pool.touch(hit.block_ids)
        request.block_ids = hit.block_ids + pool.allocate(num_new)
        self._note(request, num_cached)
        self._enter_row(request, hit, count, draft)
        return ""

    def _is_still_blocked(self, request: Request) -> bool:
        if self._blocked is None:
            return False
        blocked, until = self._blocked
        return blocked is request and self._state.pool.num_changes < until

    def _find_prefix(self, request: Request) -> PrefixHit:
        """The cached start of a request; none where the logits of its prompt are asked for."""
        if _wants_prompt_logprobs(request):
            return PrefixHit([], self._state.pool.root)
        return self._state.pool.find_prefix(request)

    def _count_to_run(self, missing: int, budget_left: int) -> int:
        """Tokens of a request to run; 0 where a prompt that must stay whole has no room."""
        count = min(missing, self._cap)
        if self._may_cut_to_fit:
            return min(count, budget_left)
        count = min(count, self._budget)
        return count if count <= budget_left else 0

    def _enter_row(self, request: Request, hit: PrefixHit, count: int, draft: Draft) -> None:
        table, pool = self._state.table, self._state.pool
        num_cached = len(hit.block_ids) * pool.block_size
        row = table.take(request, num_cached, self._state.max_model_len)
        table.capacity[row] = len(request.block_ids) * pool.block_size
        has_keys = pool.shares_blocks_of(request)
        table.next_key[row] = num_cached + pool.block_size if has_keys else NEVER
        table.tails[row] = hit.tail
        request.status = RequestStatus.RUNNING
        new = NewRow(
            row=row,
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_cached,
            block_ids=list(request.block_ids),
            params=_params_to_run(request),
            eos_token_ids=request.eos_token_ids,
        )
        draft.add_admitted(new, count)
        give_row_keys(self._state, row, num_cached + count, draft.keyed_blocks)

    def _note(self, request: Request, num_cached: int) -> None:
        """Counts a hit, apart for a request that comes back; starts its prompt's logprobs."""
        state, stats = self._state, self._state.stats
        num_asked = request.num_tokens if state.pool.enable_prefix_caching else 0
        if _wants_prompt_logprobs(request):
            state.prompt_logprobs[request.request_id] = []
            num_asked = 0
        if request.first_scheduled_s is None:
            request.first_scheduled_s = time.perf_counter()
            request.num_cached_tokens = num_cached
            stats.prefix_query_tokens += num_asked
            stats.prefix_hit_tokens += num_cached
        else:
            lost = state.lost_tokens.pop(request.request_id)
            stats.recomputed_tokens += max(0, lost - num_cached)
            stats.preempted_query_tokens += num_asked
            stats.preempted_hit_tokens += num_cached


def _params_to_run(request: Request) -> SamplingParams:
    """The runner makes the log-probabilities of a prompt once, not again after a preemption."""
    if request.params.prompt_logprobs is None or _wants_prompt_logprobs(request):
        return request.params
    return request.params.updated(prompt_logprobs=None)


def _wants_prompt_logprobs(request: Request) -> bool:
    """Whether the logits of each prompt token are still to be had: none may come from the cache."""
    has_begun = request.num_tokens > request.num_prompt_tokens
    return request.params.prompt_logprobs is not None and not has_begun
