"""RowTable: the running requests as numpy arrays, so that a step costs a few array operations."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from runtime.data.request import Request
from runtime.data.step import BoolArray, IntArray
from runtime.kv_cache import CachedPrefix

RowIndex = npt.NDArray[np.intp]
"""Rows, as numpy indexes with them fastest."""

NEVER = int(np.iinfo(np.int32).max)
_NO_ID = -1
_MAX_STOP_COLUMNS = 16


class RowTable:
    """What is known of each row, [max_num_seqs] unless said otherwise; free rows hold anything.

    Attributes:
        num_tokens: known tokens.
        num_expected: known tokens, and those that steps in flight are sampling. Equal to num_tokens
            unless the scheduler runs ahead.
        num_computed: tokens whose K/V are, or by this step will be, in the cache.
        num_prompt: prompt tokens.
        capacity: tokens that the row's blocks hold.
        limit: known tokens at which the request ends; the last one needs no K/V.
        stops_from: known tokens from which on a stop id counts (min_tokens).
        next_key: computed tokens at which the next block is full and due a key; NEVER if none is.
        epoch: grows each time the row is taken: tells a request from a later one in the same row.
        requests: object array of requests.
        tails: the prefix of the row's last keyed block, or the root.
        needs_tokens: whether a token can be sampled only once those before it are on the host.
    """

    def __init__(self, max_num_seqs: int) -> None:
        def column() -> IntArray:
            return np.zeros(max_num_seqs, np.int32)

        self.num_tokens = column()
        self.num_expected = column()
        self.num_computed = column()
        self.num_prompt = column()
        self.capacity = column()
        self.limit = column()
        self.stops_from = column()
        self.next_key = column()
        self.epoch = np.zeros(max_num_seqs, np.int64)
        self.is_held = np.zeros(max_num_seqs, np.bool_)
        self.needs_tokens = np.zeros(max_num_seqs, np.bool_)
        self.requests = np.full(max_num_seqs, None, object)
        self.tails: list[CachedPrefix | None] = [None] * max_num_seqs
        self._stop_ids = np.full((max_num_seqs, 1), _NO_ID, np.int32)
        self._many_stop_ids: dict[int, frozenset[int]] = {}
        """Rows with too many stop ids for the table."""
        self._free = list(range(max_num_seqs))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, request: Request, num_computed: int, max_model_len: int) -> int:
        """Puts a request into the lowest free row; its block columns are the caller's."""
        row = heapq.heappop(self._free)
        self.is_held[row] = True
        self.epoch[row] += 1
        self.requests[row] = request
        request.row = row
        prompt, params = request.num_prompt_tokens, request.params
        self.num_tokens[row] = self.num_expected[row] = request.num_tokens
        self.num_computed[row] = num_computed
        self.num_prompt[row] = prompt
        self.limit[row] = min(prompt + params.max_tokens, max_model_len)
        # a structured output that gave EOS is finished; before that, EOS was not to be sampled
        self.stops_from[row] = prompt + (0 if params.structured_output else params.min_tokens)
        self.needs_tokens[row] = params.needs_known_tokens
        self._set_stop_ids(row, request)
        return row

    def release(self, row: int) -> None:
        """Frees a row, and brings the request's progress up to date."""
        request = self.requests[row]
        request.num_computed_tokens = int(self.num_computed[row])
        request.row = -1
        self.requests[row] = None
        self.tails[row] = None
        self.is_held[row] = False
        self._many_stop_ids.pop(row, None)
        heapq.heappush(self._free, row)

    def is_stopped(self, rows: RowIndex, token_ids: IntArray, num_tokens: IntArray) -> BoolArray:
        """Which rows end with their new token because it is a stop id.

        Args:
            num_tokens: known tokens, the new one included.
        """
        hit: BoolArray = (self._stop_ids[rows] == token_ids[:, None]).any(axis=1)
        for row, ids in self._many_stop_ids.items():
            for index in np.flatnonzero(rows == row):
                hit[index] = int(token_ids[index]) in ids
        if hit.any():
            hit &= num_tokens > self.stops_from[rows]
        return hit

    def _set_stop_ids(self, row: int, request: Request) -> None:
        eos = request.eos_token_ids if request.params.heeds_eos else ()
        ids = frozenset(eos) | frozenset(request.params.stop_token_ids)
        self._stop_ids[row] = _NO_ID
        if len(ids) > _MAX_STOP_COLUMNS:
            self._many_stop_ids[row] = ids
            return
        missing = len(ids) - self._stop_ids.shape[1]
        if missing > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, missing)), constant_values=_NO_ID)
        self._stop_ids[row, : len(ids)] = list(ids)
