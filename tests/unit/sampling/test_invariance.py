"""A row's draws do not depend on the batch, its order, its rows, chunking or preemption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.data.params import SamplingParams
from tests.unit.sampling.helpers import Bench
from tests.unit.sampling.test_draw import logits_of

V = 5000
MIX = [
    SamplingParams(seed=42, temperature=0.8),
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1, top_k=20, top_p=0.9),
    SamplingParams(seed=2, top_p=0.95),
    SamplingParams(seed=3, min_p=0.02, temperature=1.3),
    SamplingParams(seed=4, repetition_penalty=1.3, frequency_penalty=0.2, top_k=40),
    SamplingParams(seed=5, logit_bias={7: 4.0}, allowed_token_ids=tuple(range(0, V, 3))),
    SamplingParams(),
]


def run(bench: Bench, which: list[int], num_steps: int = 12) -> list[list[int]]:
    """Tokens of the requests `which`, whose logits depend on request, position and last token."""
    out: list[list[int]] = [[] for _ in which]
    for _ in range(num_steps):
        rows = [logits_for(bench, i) for i in which]
        logits = torch.zeros(len(bench.rows), V)
        logits[which] = torch.stack(rows)
        for tokens, token in zip(out, bench.step(logits, which), strict=True):
            tokens.append(token)
    return out


def logits_for(bench: Bench, i: int) -> torch.Tensor:
    position = int(bench.num_tokens[i])
    last = int(bench.token_ids[bench.rows[i], position - 1])
    return logits_of(1, V, 2.5, seed=1000 * i + 10 * position + last % 7)[0]


@pytest.fixture(scope="module")
def together() -> list[list[int]]:
    return run(Bench(MIX, V), list(range(len(MIX))))


@pytest.mark.parametrize("i", range(len(MIX)))
def test_alone_equals_together(together, i):
    assert run(Bench(MIX, V), [i]) == [together[i]]


def test_order_and_rows_change_nothing(together):
    order = [3, 0, 7, 5, 1, 6, 2, 4]
    bench = Bench(MIX, V, rows=[9, 2, 5, 0, 11, 4, 1, 8])
    assert run(bench, order) == [together[i] for i in order]


def test_a_preempted_row_goes_on_as_if_nothing_had_happened(together):
    bench = Bench(MIX, V)
    everyone = list(range(len(MIX)))
    first = run(bench, everyone, 5)
    known = [bench.token_ids[bench.rows[i], : bench.num_tokens[i]].tolist() for i in everyone]
    bench.rows = np.roll(bench.rows, 3)
    for i in everyone:
        bench.sampler.drop(int(bench.rows[i]))
    for i in everyone:
        bench.enter(i, MIX[i], known[i][:3], known[i][3:], (0,))
    rest = run(bench, everyone, 7)
    assert [a + b for a, b in zip(first, rest, strict=True)] == together


@pytest.mark.case("SA01")
def test_a_seeded_row_beside_an_unseeded_one():
    seeded, other = SamplingParams(seed=42, temperature=0.8), SamplingParams(temperature=0.8)
    logits = logits_of(16, 50, 1.0)

    def tokens(params: list[SamplingParams], at: int) -> list[int]:
        bench = Bench(params, 50)
        return [bench.step(row.expand(len(params), -1))[at] for row in logits]

    alone = tokens([seeded], 0)
    assert all(tokens([seeded, other], 0) == alone for _ in range(4))
    assert tokens([other, seeded], 1) == alone
    assert len(set(alone)) > 4


def test_seeds_and_positions_give_different_draws():
    logits = logits_of(1, 1000, 0.5).expand(32, -1)
    by_seed = Bench([SamplingParams(seed=s) for s in range(32)], 1000).sample(logits).token_ids
    assert len(set(by_seed.tolist())) > 16
    bench = Bench([SamplingParams(seed=1)], 1000)
    by_position = [bench.step(logits[:1])[0] for _ in range(32)]
    assert len(set(by_position)) > 16
