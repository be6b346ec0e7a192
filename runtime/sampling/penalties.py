"""Presence, frequency and repetition penalties, from counts kept per row as tokens arrive."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from runtime.data.step import NewRow
from runtime.ops.transfer import upload
from runtime.sampling.edits import IdArray, Work, held_rows


class TokenCounts:
    """The distinct known tokens of one row, each with its count in the output."""

    def __init__(self, num_prompt_tokens: int, with_prompt: bool) -> None:
        """
        Args:
            with_prompt: whether the prompt's tokens are listed too, with a count of 0.
        """
        self._start = 0 if with_prompt else num_prompt_tokens
        self._num_prompt = num_prompt_tokens
        self._seen = self._start
        self._size = 0
        self._ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.float32)
        self._place: dict[int, int] = {}

    def catch_up(self, token_ids: npt.NDArray[np.int32], num_tokens: int) -> None:
        """Count the row's tokens up to `num_tokens`; those counted before are not read again."""
        if num_tokens < self._seen:
            raise AssertionError(f"a row went back from {self._seen} to {num_tokens} tokens")
        if num_tokens - self._seen > 16:
            self._count_all(token_ids[:num_tokens])
        else:
            for position in range(self._seen, num_tokens):
                self._count_one(int(token_ids[position]), position >= self._num_prompt)
        self._seen = num_tokens

    def _count_all(self, known: npt.NDArray[np.int32]) -> None:
        ids, inverse = np.unique(known[self._start :], return_inverse=True)
        of_output = inverse[self._num_prompt - self._start :]
        self._ids, self._size = ids.astype(np.int64), len(ids)
        self._counts = np.bincount(of_output, minlength=len(ids)).astype(np.float32)
        self._place = dict(zip(ids.tolist(), range(len(ids)), strict=True))

    def _count_one(self, token: int, is_output: bool) -> None:
        place = self._place.setdefault(token, self._size)
        if place == self._size:
            if place == len(self._ids):
                room = max(16, place)
                self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
            self._ids[place], self._counts[place] = token, 0
            self._size += 1
        self._counts[place] += is_output

    @property
    def ids(self) -> IdArray:
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: self._size]


class Penalties:
    """Repetition first (tokens of prompt and output), then frequency and presence (of output).

    A positive logit is divided by the repetition penalty, another multiplied by it; then
    frequency * count and, where count > 0, presence are taken off.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[TokenCounts, tuple[float, float, float]]] = {}

    def add(self, new: NewRow) -> bool:
        p = new.params
        factors = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
        if factors != (1, 0, 0):
            counts = TokenCounts(new.num_prompt_tokens, with_prompt=p.repetition_penalty != 1)
            self._rows[new.row] = (counts, factors)
        return new.row in self._rows

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def apply(self, work: Work) -> None:
        if not (held := held_rows(self._rows, work.rows)):
            return
        states = [self._rows[int(work.rows[i])] for i in held]
        for i, (counts, _) in zip(held, states, strict=True):
            counts.catch_up(work.token_ids[int(work.rows[i])], int(work.num_tokens[i]))
        places = work.places(held, [counts.ids for counts, _ in states])
        factors = np.array([f for _, f in states], np.float32)
        spread = np.repeat(factors, [len(counts.ids) for counts, _ in states], axis=0)
        count = np.concatenate([counts.counts for counts, _ in states])
        taken = spread[:, 1] * count + spread[:, 2] * (count > 0)
        repetition, taken = upload(work.logits.device, np.ascontiguousarray(spread[:, 0]), taken)
        flat = work.logits.view(-1)
        x = flat[places]
        x = torch.where(x > 0, x / repetition, x * repetition)
        flat[places] = x - taken
