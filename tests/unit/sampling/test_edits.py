"""Masks, bias, penalties and processors against the slow twin, and each one's own rules."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.data.params import SamplingParams
from runtime.sampling.draw import CHUNK_BYTES
from runtime.sampling.edits import bad_word_ids
from runtime.sampling.penalties import TokenCounts
from tests.unit.sampling.helpers import Bench, ByteTokenizer
from tests.unit.sampling.test_draw import logits_of
from tests.unit.sampling.twin import edited_logits, sample_row
from tests.unit.text.vocabularies import byte_level

V = 40
TOKENS = st.integers(0, V - 1)
EOS = (0, 39)


@st.composite
def edited_params(draw: st.DrawFn) -> SamplingParams:
    fields = {
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 3, 20]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "min_tokens": st.integers(0, 8),
        "stop_token_ids": st.lists(TOKENS, max_size=2),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-20, 20), max_size=3),
        "allowed_token_ids": st.lists(TOKENS, min_size=12, max_size=30),
        "seed": st.integers(0, 2**63 - 1),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(fields)))) | {"seed"}
    return SamplingParams(**{name: draw(fields[name]) for name in sorted(chosen)})


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            edited_params(),
            st.lists(TOKENS, min_size=1, max_size=9),
            st.lists(TOKENS, max_size=30),
        ),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
def test_any_mix_equals_the_twin(rows, seed):
    params, prompts, outputs = zip(*rows, strict=True)
    logits = logits_of(len(rows), V, 3.0, seed)
    bench = Bench(params, V, prompts=prompts, outputs=outputs, eos=EOS)
    out = bench.sample(logits)
    for i, (p, prompt, output) in enumerate(rows):
        ends = {*EOS, *p.stop_token_ids}
        final = edited_logits(logits[i].numpy(), p, prompt, output, ends, [])
        if np.isinf(final).all():
            assert "no token" in out.errors[i]
        else:
            assert out.token_ids[i] == sample_row(final, p, len(prompt) + len(output))


@given(
    known=st.lists(st.integers(0, 9), min_size=1, max_size=120),
    num_prompt=st.integers(0, 60),
    steps=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    with_prompt=st.booleans(),
)
def test_counts_kept_step_by_step_equal_a_recount(known, num_prompt, steps, with_prompt):
    num_prompt = min(num_prompt, len(known))
    counts, at = TokenCounts(num_prompt, with_prompt), num_prompt
    for step in [0, *steps]:
        at = min(at + step, len(known))
        counts.catch_up(np.array(known, np.int32), at)
        output = known[num_prompt:at]
        listed = set(output) | (set(known[:num_prompt]) if with_prompt else set())
        want = {token: output.count(token) for token in listed}
        assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == want


def test_penalties_follow_the_output_over_steps():
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    logits = torch.zeros(1, 8)
    logits[0, [3, 5]] = torch.tensor([2.5, 1.2])
    bench = Bench([params], 8, prompts=[[3, 3, 3]])
    assert [bench.step(logits)[0] for _ in range(6)] == [3, 3, 5, 3, 5, 0]


def test_repetition_counts_the_prompt_and_presence_does_not():
    logits = torch.tensor([[1.0, 1.5, -1.0, 0.0]])
    presence = SamplingParams(temperature=0.0, presence_penalty=2.0)
    repetition = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    bench = Bench([presence, repetition], 4, prompts=[[1], [1]])
    assert bench.sample(logits.expand(2, -1)).token_ids.tolist() == [1, 0]


@pytest.mark.case("DT07")
def test_min_tokens_masks_every_end():
    v = 10
    logits = torch.zeros(2, v)
    logits[:, 5], logits[:, 2], logits[:, 7], logits[:, 4] = 9.0, 8.0, 7.0, 6.0
    params = [
        SamplingParams(temperature=0.0, min_tokens=4),
        SamplingParams(temperature=0.0, min_tokens=4, stop_token_ids=(7,), ignore_eos=True),
    ]
    bench = Bench(params, v, eos=(2, 5))
    steps = [bench.step(logits) for _ in range(6)]
    assert [s[0] for s in steps] == [7, 7, 7, 7, 5, 5]
    assert [s[1] for s in steps] == [4, 4, 4, 4, 5, 5]


def test_allowed_ids_and_bias():
    logits = logits_of(3, 50, 1.0)
    params = [
        SamplingParams(temperature=0.0, allowed_token_ids=(7, 8)),
        SamplingParams(seed=1, logit_bias={9: 100.0}),
        SamplingParams(temperature=0.0, logit_bias={int(logits[2].argmax()): -100.0}),
    ]
    tokens = Bench(params, 50).sample(logits).token_ids.tolist()
    assert tokens[0] == (7 if logits[0, 7] > logits[0, 8] else 8)
    assert tokens[1] == 9
    assert tokens[2] == int(logits[2].topk(2).indices[1])


def test_an_empty_choice_ends_that_request_alone():
    params = [
        SamplingParams(temperature=0.0, allowed_token_ids=(5,), min_tokens=2, stop_token_ids=(5,)),
        SamplingParams(temperature=0.0),
    ]
    out = Bench(params, 10).sample(logits_of(2, 10, 1.0))
    assert list(out.errors) == [0]
    assert "min_tokens" in out.errors[0]
    assert out.token_ids[1] >= 0


def test_bad_words_are_spelt_with_and_without_a_space(tokenizer: ByteTokenizer):
    words = bad_word_ids(["abc", "a"], tokenizer)
    assert words == [tokenizer.encode(t) for t in ("abc", " abc", "a", " a")]


def test_bad_words_in_one_token_and_in_several(tokenizer: ByteTokenizer):
    v = tokenizer.vocab_size
    a, b, x, ab = (tokenizer.encode(t)[0] for t in ("a", "b", "x", "ab"))
    logits = torch.zeros(1, v)
    logits[0, [a, b, x, ab]] = torch.tensor([5.0, 6.0, 4.0, 7.0])
    params = SamplingParams(temperature=0.0, bad_words=("ab", "xb", "bxb"))

    def next_token(output: str) -> int:
        bench = Bench(
            [params], v, outputs=[tokenizer.encode(output)], tokenizer=tokenizer, prompts=[[x]]
        )
        return int(bench.sample(logits).token_ids[0])

    assert next_token("") == b  # the prompt ends with x, which is no part of the output
    assert next_token("a") == b  # "ab" is spelt as one token; "a" then "b" is another spelling
    assert next_token("x") == a
    assert next_token("bx") == a
    assert next_token("xa") == b


def test_bad_words_without_a_tokenizer_end_that_request():
    params = [SamplingParams(temperature=0.0, bad_words="x"), SamplingParams(temperature=0.0)]
    out = Bench(params, 10).sample(logits_of(2, 10, 1.0))
    assert list(out.errors) == [0]
    assert out.errors[0].startswith("bad_words: ")


class TestProcessors:
    def test_sees_the_known_tokens_and_changes_the_choice(self):
        seen = []

        def only_last(token_ids, logits):
            seen.append(list(token_ids))
            logits[:-1] = -100
            return logits

        params = SamplingParams(temperature=0.0, logits_processors=(only_last,))
        logits = logits_of(2, 30, 1.0)
        before = logits.clone()
        bench = Bench([params, SamplingParams(temperature=0.0)], 30)
        assert bench.step(logits) == [29, int(logits[1].argmax())]
        assert bench.step(logits)[0] == 29
        assert seen == [[1, 2, 3], [1, 2, 3, 29]]
        assert torch.equal(logits, before)

    def test_cannot_bring_back_a_masked_token(self):
        params = SamplingParams(
            temperature=0.0,
            allowed_token_ids=(4, 5),
            logits_processors=(lambda _, x: torch.arange(float(len(x))),),
        )
        assert Bench([params], 30).sample(logits_of(1, 30, 1.0)).token_ids.tolist() == [5]

    @pytest.mark.parametrize(
        ("processor", "reason"),
        [
            (lambda ids, x: 1 / 0, "ZeroDivisionError"),
            (lambda ids, x: None, "got NoneType"),
            (lambda ids, x: x[:3], r"got \(3,\)"),
            (lambda ids, x: x * float("nan"), "NaN"),
        ],
    )
    def test_one_that_fails_ends_its_request_alone(self, processor, reason):
        greedy = SamplingParams(temperature=0.0)
        failing = SamplingParams(temperature=0.0, logits_processors=(processor,))
        logits = logits_of(3, 30, 1.0)
        out = Bench([greedy, failing, greedy], 30).sample(logits)
        assert list(out.errors) == [1]
        assert re.search(reason, out.errors[1])
        assert out.errors[1].startswith("logits_processors: ")
        assert out.token_ids.tolist() == [int(logits[0].argmax()), -1, int(logits[2].argmax())]


def test_edits_in_several_parts_equal_edits_in_one(monkeypatch):
    params = [SamplingParams(seed=s, presence_penalty=0.5, logit_bias={s: 3.0}) for s in range(9)]
    logits = logits_of(9, 700, 1.0)
    whole = Bench(params, 700).sample(logits).token_ids.tolist()
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 1)
    monkeypatch.setattr("runtime.sampling.sampler.EDIT_CHUNKS", 5000)
    assert Bench(params, 700).sample(logits).token_ids.tolist() == whole


@pytest.mark.parametrize("is_split", [False, True])
def test_a_bad_word_may_be_a_special_token(is_split):
    tokenizer = byte_level()
    tokenizer.backend.encode_special_tokens = is_split
    ids = bad_word_ids(["<|end|>"], tokenizer)
    assert [tokenizer.token_id("<|end|>")] in ids
