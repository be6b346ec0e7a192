"""Logits at the edge: -inf, NaN, padded ids, half precision, limits at and over the vocabulary."""

from __future__ import annotations

import pytest
import torch

from runtime.data.params import SamplingParams
from tests.unit.sampling.helpers import Bench
from tests.unit.sampling.test_draw import logits_of

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.case("SA05")
def test_top_k_off_and_top_k_n_in_one_batch():
    v = 64
    params = [SamplingParams(seed=9, top_k=k) for k in (0, 5, -1, v, v + 10)] + [GREEDY]
    logits = logits_of(1, v, 1.0).expand(6, -1)
    bench = Bench(params, v)
    tokens = [bench.step(logits) for _ in range(40)]
    unlimited = [[t[i] for t in tokens] for i in (0, 2, 3, 4)]
    assert unlimited.count(unlimited[0]) == 4
    assert {t[1] for t in tokens} <= set(logits[0].topk(5).indices.tolist())
    assert not {t[0] for t in tokens} <= set(logits[0].topk(5).indices.tolist())
    assert {t[5] for t in tokens} == {int(logits[0].argmax())}


@pytest.mark.case("SA07")
@pytest.mark.parametrize("top_k", [64, 65, 1000])
def test_top_k_at_and_over_the_vocabulary_is_no_limit(top_k):
    logits = logits_of(50, 64, 1.0)
    with_k = Bench([SamplingParams(seed=s, top_k=top_k) for s in range(50)], 64)
    without = Bench([SamplingParams(seed=s) for s in range(50)], 64)
    assert with_k.sample(logits).token_ids.tolist() == without.sample(logits).token_ids.tolist()


@pytest.mark.case("SA09")
def test_minus_infinity_beside_a_random_row():
    v = 100
    logits = logits_of(3, v, 1.0)
    logits[0, ::2] = -torch.inf
    logits[2, :95] = -torch.inf
    mixed = Bench([GREEDY, SamplingParams(seed=3, temperature=0.8), SamplingParams(seed=1)], v)
    out = mixed.sample(logits)
    assert not out.errors
    assert out.token_ids[0] == int(logits[0].argmax())
    assert out.token_ids[2] >= 95
    alone = Bench([GREEDY, SamplingParams(seed=3, temperature=0.8)], v).sample(logits[:2])
    assert out.token_ids[1] == alone.token_ids[1]


@pytest.mark.case("SA11")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(seed=1),
        SamplingParams(seed=1, top_p=0.5),
        SamplingParams(seed=1, top_k=9),
        SamplingParams(seed=1, logit_bias={3: 1.0}, logprobs=2),
    ],
    ids=["greedy", "plain", "top_p", "top_k", "edited"],
)
@pytest.mark.parametrize("vocab_size", [30, 9000])
def test_a_row_that_is_not_finite_ends_alone(params, bad, vocab_size):
    logits = logits_of(3, vocab_size, 1.0)
    bench = Bench([params] * 3, vocab_size)
    want = bench.sample(logits).token_ids.tolist()
    logits[1, 17] = bad
    out = bench.sample(logits)
    assert list(out.errors) == [1]
    assert "NaN or infinity" in out.errors[1]
    assert out.token_ids.tolist() == [want[0], -1, want[2]]


def test_a_row_of_minus_infinity_ends_alone():
    logits = logits_of(2, 30, 1.0)
    logits[0] = -torch.inf
    for params in (GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.9)):
        out = Bench([params] * 2, 30).sample(logits)
        assert list(out.errors) == [0]
        assert out.token_ids[1] >= 0


@pytest.mark.case("SA15")
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(seed=1),
        SamplingParams(seed=1, top_k=100),
        SamplingParams(seed=1, top_p=0.999),
        SamplingParams(seed=1, presence_penalty=1.0, logprobs=-1),
    ],
)
def test_ids_without_a_piece_are_never_sampled(params):
    logits = logits_of(20, 72, 0.1)
    logits[:, 70] = 30.0
    out = Bench([params] * 20, 72, num_valid_ids=64).sample(logits)
    assert not out.errors
    assert out.token_ids.max() < 64
    for entries in out.logprobs or []:
        assert max(e.token_id for e in entries) < 64


def test_params_and_prompts_may_name_ids_without_a_piece():
    """They are in the model's vocabulary, so they are no error; nor may they reach another row."""
    params = [
        SamplingParams(temperature=0.0, logit_bias={71: 100.0, 3: 50.0}),
        SamplingParams(temperature=0.0, allowed_token_ids=(5, 70)),
        SamplingParams(temperature=0.0, repetition_penalty=9.0, presence_penalty=2.0),
        SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(69,)),
        SamplingParams(temperature=0.0, logits_processors=(lambda _, x: x,)),
    ]
    logits = logits_of(5, 72, 1.0)
    bench = Bench(params, 72, num_valid_ids=64, prompts=[[64, 65, 66, 67, 68, 69, 70, 71]] * 5)
    best = logits[:, :64].argmax(-1).tolist()
    out = bench.sample(logits)
    assert not out.errors
    assert out.token_ids.tolist() == [3, 5, *best[2:]]


def test_ids_outside_the_models_vocabulary_end_that_request():
    params = [SamplingParams(temperature=0.0, logit_bias={72: 1.0}), GREEDY]
    out = Bench(params, 72).sample(logits_of(2, 72, 1.0))
    assert list(out.errors) == [0]
    assert out.errors[0].startswith("logit_bias: ")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_as_float32(dtype):
    params = [
        GREEDY,
        SamplingParams(seed=2, temperature=0.7),
        SamplingParams(seed=3, top_p=0.9),
        SamplingParams(seed=4, top_k=30, min_p=0.01),
        SamplingParams(seed=5, frequency_penalty=0.5, logprobs=3),
    ]
    logits = logits_of(5, 6000, 4.0).to(dtype)
    half, full = Bench(params, 6000).sample(logits), Bench(params, 6000).sample(logits.float())
    assert half.token_ids.tolist() == full.token_ids.tolist()
    assert half.logprobs == full.logprobs


@pytest.mark.case("AT09")
@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_the_callers_logits_are_not_changed_and_logprobs_are_raw(temperature):
    params = [
        SamplingParams(seed=1, temperature=temperature, logprobs=2),
        SamplingParams(seed=1, temperature=temperature, logprobs=2, top_p=0.8),
        SamplingParams(seed=1, temperature=temperature, logprobs=2, logit_bias={5: 50.0}),
        SamplingParams(seed=1, temperature=temperature, logprobs=2, repetition_penalty=1.8),
    ]
    logits = logits_of(4, 500, 3.0)
    before = logits.clone()
    out = Bench(params, 500).sample(logits)
    assert torch.equal(logits, before)
    exact = before.double().log_softmax(-1)
    for row, token, entries in zip(exact, out.token_ids, out.logprobs, strict=True):
        assert entries[0].token_id == token
        for entry in entries:
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-5)


def test_temperatures_from_tiny_to_huge():
    logits = logits_of(1, 9000, 3.0).expand(20, -1).clone()
    logits[:, :100] = -torch.inf
    tiny = Bench([SamplingParams(seed=s, temperature=1e-5) for s in range(20)], 9000)
    assert set(tiny.sample(logits).token_ids.tolist()) == {int(logits[0].argmax())}
    for extra in ({}, {"top_p": 0.9}, {"top_k": 5000}):
        huge = [SamplingParams(seed=s, temperature=1e308, **extra) for s in range(20)]
        out = Bench(huge, 9000).sample(logits)
        assert not out.errors
        assert out.token_ids.min() >= 100
        assert len(set(out.token_ids.tolist())) > 15


def test_no_rows():
    out = Bench([GREEDY], 10).sample(torch.zeros(1, 10), order=[])
    assert out.token_ids.shape == (0,)
    assert out.logprobs is None
