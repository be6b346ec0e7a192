"""What the runner knows of each running request: rows of numpy matrices.

A row is given by the scheduler and kept for as long as the request runs. Nothing here grows with a
step's size except what changed in it.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from attention_backends import NULL_BLOCK
from runtime.data.step import IntArray, NewRow, SchedulerOutput

Int64Array = npt.NDArray[np.int64]


class RequestStates:
    """Tokens and blocks of every row.

    Attributes:
        token_ids: [max_num_seqs, max_model_len] int32, the known tokens of each row. Pages of rows
            that were never used are not resident.
        block_table: [max_num_seqs, M] int32; entries past a row's blocks are NULL_BLOCK.
        num_blocks: [max_num_seqs] int32.
        tenancy: [max_num_seqs] int64, grows when a row changes hands.
        sample_index: [max_num_seqs] int64, the place of each row's token among those of the last
            step that sampled it.
        prompt_logprobs: row -> length of the prompt, of the rows that asked for log-probabilities
            of their prompt.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.token_ids: IntArray = np.zeros((max_num_seqs, max_model_len), np.int32)
        max_blocks = -(-max_model_len // block_size)
        self.block_table: IntArray = np.zeros((max_num_seqs, max_blocks), np.int32)
        if NULL_BLOCK:
            self.block_table[:] = NULL_BLOCK
        self.num_blocks: IntArray = np.zeros(max_num_seqs, np.int32)
        self.tenancy: Int64Array = np.zeros(max_num_seqs, np.int64)
        self.sample_index: Int64Array = np.zeros(max_num_seqs, np.int64)
        self.prompt_logprobs: dict[int, int] = {}

    def apply(self, so: SchedulerOutput) -> None:
        """Follow the scheduler: drop freed rows, add new ones, append block ids, in this order."""
        for row in so.freed_rows:
            self._drop(row)
        for new in so.new_rows:
            self._add(new)
        if so.new_block_ids:
            self._append_blocks(so.new_block_ids)

    def note_samples(self, rows: IntArray) -> None:
        """A step samples for these rows [S], in this order."""
        self.sample_index[rows] = np.arange(len(rows))

    def write_tokens(
        self,
        rows: IntArray,
        positions: IntArray,
        token_ids: IntArray,
        tenancy: Int64Array | None = None,
    ) -> None:
        """Note the sampled tokens [S] at their positions, so that a later step can run them.

        Args:
            tenancy: [S] of the rows when their step was launched: those that have changed hands
                since are left alone.
        """
        if tenancy is not None:
            is_same = self.tenancy[rows] == tenancy
            rows, positions, token_ids = rows[is_same], positions[is_same], token_ids[is_same]
        self.token_ids[rows, positions] = token_ids

    def _drop(self, row: int) -> None:
        self.block_table[row, : self.num_blocks[row]] = NULL_BLOCK
        self.num_blocks[row] = 0
        self.tenancy[row] += 1
        self.prompt_logprobs.pop(row, None)

    def _add(self, new: NewRow) -> None:
        self._drop(new.row)
        self.token_ids[new.row, : len(new.token_ids)] = new.token_ids
        self.block_table[new.row, : len(new.block_ids)] = new.block_ids
        self.num_blocks[new.row] = len(new.block_ids)
        if new.params.prompt_logprobs is not None:
            self.prompt_logprobs[new.row] = new.num_prompt_tokens

    def _append_blocks(self, appended: tuple[tuple[int, list[int]], ...]) -> None:
        rows = np.array([row for row, _ in appended], np.int32)
        counts = np.array([len(ids) for _, ids in appended], np.int32)
        ids = np.fromiter(chain.from_iterable(ids for _, ids in appended), np.int32)
        starts = np.cumsum(counts) - counts
        columns = np.arange(len(ids)) + np.repeat(self.num_blocks[rows] - starts, counts)
        self.block_table[np.repeat(rows, counts), columns] = ids
        self.num_blocks[rows] += counts


def slots_of(
    block_table: IntArray, rows: IntArray, positions: IntArray, block_size: int
) -> npt.NDArray[np.int64]:
    """Slots [T] of the tokens at `positions` [T] of `rows` [T]: block id * block size + offset."""
    blocks, offsets = np.divmod(positions, np.int32(block_size))
    return block_table[rows, blocks].astype(np.int64) * block_size + offsets
