"""Log-probabilities and ranks against a full sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.data.params import SamplingParams
from tests.unit.sampling.helpers import Bench
from tests.unit.sampling.test_draw import logits_of


def expected(row: torch.Tensor, token: int, num_top: int) -> list[tuple[int, float, int]]:
    exact = row.double().log_softmax(-1).tolist()
    order = sorted(range(len(exact)), key=lambda i: (-float(row[i]), i))
    top = order if num_top == -1 else order[:num_top]
    listed = [token, *(t for t in top if t != token)]
    return [(t, exact[t], order.index(t) + 1) for t in listed]


@pytest.mark.parametrize("vocab_size", [50, 4097, 9000])
@pytest.mark.parametrize("ties", [False, True])
def test_sampled_token_first_then_the_top_by_rank(vocab_size, ties):
    params = [
        SamplingParams(seed=s, temperature=t, logprobs=k)
        for s, (t, k) in enumerate([(0.0, 3), (2.0, 0), (2.0, 5), (1.0, -1), (0.5, 200)])
    ]
    logits = logits_of(5, vocab_size, 2.0)
    if ties:
        logits = logits.round()
    out = Bench(params, vocab_size).sample(logits)
    for i, entries in enumerate(out.logprobs):
        want = expected(logits[i], int(out.token_ids[i]), params[i].logprobs)
        assert [(e.token_id, e.rank) for e in entries] == [(t, r) for t, _, r in want]
        assert [e.logprob for e in entries] == pytest.approx([x for _, x, _ in want], abs=1e-5)


@pytest.mark.case("SA19")
def test_the_sampled_token_is_listed_with_its_rank():
    logits = logits_of(60, 30, 0.5)
    one = Bench([SamplingParams(seed=s, temperature=2.0, logprobs=1) for s in range(60)], 30)
    none = Bench([SamplingParams(seed=s, temperature=2.0, logprobs=0) for s in range(60)], 30)
    out, bare = one.sample(logits), none.sample(logits)
    assert out.token_ids.tolist() == bare.token_ids.tolist()
    outside = 0
    for row, token, entries, alone in zip(
        logits, out.token_ids.tolist(), out.logprobs, bare.logprobs, strict=True
    ):
        rank = int((row > row[token]).sum()) + 1
        assert (entries[0].token_id, entries[0].rank) == (token, rank)
        assert alone == entries[:1]
        assert len(entries) == (1 if rank == 1 else 2)
        assert entries[-1].rank == 1
        outside += rank > 1
    assert outside > 20


def test_only_rows_that_ask_get_any():
    params = [SamplingParams(seed=1), SamplingParams(seed=2, logprobs=2)]
    out = Bench(params, 20).sample(logits_of(2, 20, 1.0))
    assert out.logprobs[0] is None
    assert len(out.logprobs[1]) >= 2
    assert Bench(params[:1], 20).sample(logits_of(1, 20, 1.0)).logprobs is None


def test_they_do_not_depend_on_the_batch():
    params = [SamplingParams(seed=s, logprobs=4, top_p=0.9) for s in range(8)]
    logits = logits_of(8, 9000, 3.0)
    bench = Bench(params, 9000)
    together = bench.sample(logits).logprobs
    assert [bench.sample(logits, [i]).logprobs[0] for i in range(8)] == together


@pytest.mark.case("SA17")
def test_prompt_logprobs_in_any_chunks():
    prompt = [5, 1, 4, 4, 2, 9, 30, 7, 8, 11, 2, 3, 6]
    logits = logits_of(len(prompt), 40, 2.0)
    bench = Bench([SamplingParams(prompt_logprobs=2)], 40, prompts=[prompt])
    targets = np.array(prompt[1:], np.int32)
    for size in (1, 4, 12):
        entries = []
        for i in range(0, 12, size):
            part = logits[:-1][i : i + size]
            entries += bench.sampler.prompt_logprobs(part, 0, targets[i : i + size])
        for row, target, got in zip(logits[:-1], prompt[1:], entries, strict=True):
            want = expected(row, target, 2)
            assert [(e.token_id, e.rank) for e in got] == [(t, r) for t, _, r in want]
            assert [e.logprob for e in got] == pytest.approx([x for _, x, _ in want], abs=1e-5)
