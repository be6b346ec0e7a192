"""Requests for steps by hand: what a scheduler would have the runner do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.data.params import SamplingParams
from runtime.data.step import NewRow, SchedulerOutput
from tools._steps import Part, step_of

FIRST_BLOCK = 2
"""Blocks 0 and 1 are reserved."""
GREEDY = SamplingParams(temperature=0.0)


def new_row(
    row: int, token_ids: list[int], block_ids: list[int], *, num_prompt: int | None = None
) -> NewRow:
    """A greedy request that never ends by itself."""
    prompt = len(token_ids) if num_prompt is None else num_prompt
    return NewRow(row, f"r{row}", token_ids, prompt, 0, block_ids, GREEDY, ())


def random_tokens(rng: np.random.Generator, count: int, vocab_size: int) -> list[int]:
    """Ids above the special ones."""
    return rng.integers(3, vocab_size, count).tolist()


class Pool:
    """Hands out blocks in turn; where there are too few, requests share some."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks, self._block_size, self._next = num_blocks, block_size, 0

    def take(self, num_tokens: int) -> list[int]:
        """Blocks for a request of so many tokens."""
        count = -(-num_tokens // self._block_size)
        places = (self._next + np.arange(count)) % self._num_blocks
        self._next = (self._next + count) % self._num_blocks
        return (FIRST_BLOCK + places).tolist()


class Schedule:
    """Requests that come one after another, prompts in chunks beside others' tokens, until each
    has its output: the same steps for every runner, given the same tokens.

    Args:
        lengths: (prompt, output) tokens of each request.
        budget: tokens of a step.
        max_rows: most requests at once.
    """

    def __init__(
        self,
        lengths: Sequence[tuple[int, int]],
        *,
        budget: int,
        max_rows: int,
        block_size: int,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._waiting = [
            (random_tokens(rng, prompt, vocab_size), prompt + output) for prompt, output in lengths
        ]
        self._budget, self._block_size = budget, block_size
        self._pool = Pool(sum(-(-sum(pair) // block_size) for pair in lengths), block_size)
        self._free_rows = list(range(max_rows))
        self._freed: list[int] = []
        self._known: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    @property
    def num_blocks(self) -> int:
        """That all requests need, none of them shared."""
        return self._pool._num_blocks

    def next_step(self) -> SchedulerOutput | None:
        """The next step; None at the end."""
        new = self._admit()
        left, rows, parts = self._budget, [], []
        for row, known in self._known.items():
            missing = len(known) - self._computed[row]
            count = min(missing, left)
            if count:
                left -= count
                rows.append(row)
                parts.append(Part(self._computed[row], count, count == missing))
        if not rows:
            return None
        freed, self._freed = self._freed, []
        return step_of(rows, parts, new=new, freed=freed)

    def sampled(self, so: SchedulerOutput, token_ids: Sequence[int]) -> None:
        """Take what a step gave."""
        for row, count in zip(so.rows.tolist(), so.num_scheduled_tokens.tolist(), strict=True):
            self._computed[row] += count
        for row, token in zip(so.rows[so.samples].tolist(), token_ids, strict=True):
            self._known[row].append(int(token))
            if len(self._known[row]) >= self._ends[row]:
                del self._known[row], self._computed[row], self._ends[row]
                self._free_rows.append(row)
                self._freed.append(row)

    def _admit(self) -> list[NewRow]:
        new = []
        if self._waiting and self._free_rows:
            row = self._free_rows.pop(0)
            tokens, end = self._waiting.pop(0)
            self._known[row], self._computed[row], self._ends[row] = list(tokens), 0, end
            new.append(new_row(row, list(tokens), self._pool.take(end)))
        return new
