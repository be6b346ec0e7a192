"""Draws against the slow twin and against the exact distributions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.data.params import SamplingParams
from tests.unit.sampling.helpers import Bench
from tests.unit.sampling.twin import kept_tokens, sample_row

SHAPES = {"flat": 1.0, "usual": 3.0, "peaked": 12.0}


def logits_of(n: int, v: int, scale: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, v, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("vocab_size", [2, 63, 64, 65, 1000, 9001])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_kind_of_row_draws_what_the_twin_draws(vocab_size, shape):
    kinds = [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 5.0},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 4000},
        {"top_p": 0.5},
        {"top_p": 0.99},
        {"min_p": 0.1},
        {"min_p": 1e-4},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "temperature": 0.8},
        {"top_k": 6000, "top_p": 0.999},
        {"top_p": 0.7, "min_p": 1e-5},
    ]
    params = [SamplingParams(seed=s, **k) for k in kinds for s in (1, 2, 3)]
    logits = logits_of(len(params), vocab_size, SHAPES[shape])
    bench = Bench(params, vocab_size)
    want = [sample_row(row.numpy(), p, 3) for row, p in zip(logits, params, strict=True)]
    assert bench.sample(logits).token_ids.tolist() == want


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.2, 1.0, 1.7]),
            top_k=st.integers(-1, 700),
            top_p=st.floats(0.01, 1.0),
            min_p=st.sampled_from([0.0, 0.003, 0.2, 1.0]),
            seed=st.integers(0, 2**63 - 1),
        ),
        min_size=1,
        max_size=8,
    ),
    vocab_size=st.integers(2, 600),
    scale=st.sampled_from([0.5, 2.0, 9.0]),
    seed=st.integers(0, 1000),
)
def test_any_mix_draws_what_the_twin_draws(rows, vocab_size, scale, seed):
    logits = logits_of(len(rows), vocab_size, scale, seed)
    want = [sample_row(row.numpy(), p, 3) for row, p in zip(logits, rows, strict=True)]
    assert Bench(rows, vocab_size).sample(logits).token_ids.tolist() == want


@pytest.mark.parametrize("vocab_size", [40, 8300])
def test_equal_logits_are_kept_in_the_order_of_their_ids(vocab_size):
    logits = torch.full((1, vocab_size), -8.0)
    logits[0, [7, 9, 21, 30]] = torch.tensor([1.0, 2.0, 2.0, 2.0])
    for kwargs, kept in (
        ({"top_k": 1}, {9}),
        ({"top_k": 2}, {9, 21}),
        ({"top_k": 4}, {7, 9, 21, 30}),
        ({"top_p": 0.5}, {9, 21}),
        ({"min_p": 1.0}, {9, 21, 30}),
    ):
        params = [SamplingParams(seed=s, **kwargs) for s in range(64)]
        tokens = Bench(params, vocab_size).sample(logits.expand(64, -1)).token_ids
        assert set(tokens.tolist()) == kept


def test_all_logits_equal_and_a_vocabulary_beyond_the_head():
    params = [SamplingParams(seed=s, top_k=5) for s in range(64)]
    tokens = Bench(params, 9000).sample(torch.zeros(64, 9000)).token_ids
    assert set(tokens.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab_size", [24, 4500])
def test_frequencies_follow_the_exact_distribution(kwargs, vocab_size):
    n = 4000
    logits = logits_of(1, vocab_size, 2.0, 5)
    seeds = range(n)
    bench = Bench([SamplingParams(seed=s, **kwargs) for s in seeds], vocab_size)
    drawn = Counter(bench.sample(logits.expand(n, -1)).token_ids.tolist())
    exact = kept_tokens(logits[0].numpy(), SamplingParams(seed=0, **kwargs))
    assert set(drawn) <= {token for token, _ in exact}
    assert_chi_square(drawn, exact, n)


def test_frequencies_over_positions_of_one_request():
    n, v = 4000, 24
    logits = logits_of(1, v, 1.0, 9)
    bench = Bench([SamplingParams(seed=77)] * n, v)
    bench.num_tokens[:] = np.arange(n)
    drawn = Counter(bench.sample(logits.expand(n, -1)).token_ids.tolist())
    assert_chi_square(drawn, kept_tokens(logits[0].numpy(), SamplingParams()), n)


def assert_chi_square(drawn: Counter, exact: list[tuple[int, float]], n: int) -> None:
    """Pearson's test at five sigma (Wilson-Hilferty); cells expected under 5 are joined."""
    cells = [(drawn[t], n * pr) for t, pr in exact if n * pr >= 5]
    rest = n - sum(e for _, e in cells)
    if rest > 1e-6 * n:
        cells.append((n - sum(o for o, _ in cells), rest))
    if len(cells) < 2:
        return
    statistic, dof = sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1
    sigma = math.sqrt(2 / (9 * dof))
    assert ((statistic / dof) ** (1 / 3) - (1 - 2 / (9 * dof))) / sigma < 5, (statistic, dof)
