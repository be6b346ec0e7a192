"""Drives a toy runner through a graph set, with every step compared with its exact twin."""

from __future__ import annotations

import random

import torch

from attention_backends import GraphSupport, Support
from graphs import GraphKey, GraphOptions, GraphSet
from tests.unit.graphs.toy import MAX_LEN, VOCAB, Piece, ToyRunner

CPU = torch.device("cpu")
MAX_SEQS, BUDGET = 6, 40
RAGGED = Support(ok=True, graph=GraphSupport.RAGGED)


class DiffersError(AssertionError):
    """A step's real rows are not those of its exact twin."""


def graph_set(
    runner: ToyRunner,
    decode: str,
    mixed: str,
    support: Support = RAGGED,
    options: GraphOptions | None = None,
) -> GraphSet:
    return GraphSet(
        decode,
        mixed,
        support,
        CPU,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=BUDGET,
        max_model_len=MAX_LEN,
        options=options,
        statics=runner.statics,
    )


def capture_all(graphs: GraphSet, runner: ToyRunner) -> None:
    def make_call(key: GraphKey):
        runner.fill_dummy(key.num_tokens)
        return runner.call(key)

    graphs.capture(make_call)


def run_step(graphs: GraphSet, runner: ToyRunner, pieces: list[Piece]) -> GraphKey:
    """Raises DiffersError."""
    lens = [len(piece.token_ids) for piece in pieces]
    longest = max(piece.computed + len(piece.token_ids) for piece in pieces)
    expected = runner.exact(pieces)
    key = graphs.dispatch(sum(lens), len(pieces), max(lens), longest)
    runner.fill(pieces, key.num_tokens)
    hidden = graphs.run(key, runner.call(key))
    assert hidden.shape[0] == key.num_tokens
    if not torch.allclose(hidden[: sum(lens)], expected, rtol=1e-12, atol=1e-12):
        raise DiffersError(str(key))
    return key


class Requests:
    """Requests that come, grow in chunks or by one token, and go; seeded."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._computed = [0] * MAX_SEQS

    def step(self, num_tokens: int, *, decode: bool) -> list[Piece]:
        """A step of exactly num_tokens tokens: one each, or at least one chunk of several."""
        rng = self._rng
        lens = [1] * num_tokens
        if not decode:
            most = min(MAX_SEQS, num_tokens - 1)
            count = rng.randint(-(-num_tokens // MAX_LEN), most)
            lens = [1] * count
            while sum(lens) < num_tokens:
                lens[rng.choice([i for i in range(count) if lens[i] < MAX_LEN])] += 1
        rows = rng.sample(range(MAX_SEQS), len(lens))
        pieces = []
        for row, length in zip(rows, lens, strict=True):
            if self._computed[row] + length > MAX_LEN:
                self._computed[row] = 0
            token_ids = [rng.randrange(VOCAB) for _ in range(length)]
            pieces.append(Piece(row + 2, token_ids, self._computed[row]))
            self._computed[row] += length
        return pieces

    def walk(self, num_steps: int) -> list[list[Piece]]:
        return [
            self.step(self._rng.randint(1, MAX_SEQS), decode=True)
            if self._rng.random() < 0.5
            else self.step(self._rng.randint(2, BUDGET), decode=False)
            for _ in range(num_steps)
        ]
