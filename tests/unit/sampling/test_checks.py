"""What is refused before a request is queued, and the seeds of a request's samples."""

from __future__ import annotations

import pytest

from runtime.data.params import SamplingParams
from runtime.errors import RequestError
from runtime.sampling import check_params, with_seed
from tests.unit.sampling.helpers import ByteTokenizer


@pytest.mark.case("SA13")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"191222": -100}),
        ("logit_bias", {100: 1.0}),
        ("allowed_token_ids", [3, 100]),
        ("stop_token_ids", [100]),
    ],
)
def test_ids_outside_the_vocabulary(field, value):
    params = SamplingParams.from_dict({field: value})
    with pytest.raises(RequestError, match=rf"^{field}: .*outside the vocabulary \[0, 100\)"):
        check_params(params, 100)


def test_ids_at_the_edge_of_the_vocabulary_pass():
    check_params(SamplingParams(logit_bias={99: 1}, allowed_token_ids=(99, 0)), 100)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_logprobs_have_a_limit(field):
    check_params(SamplingParams(**{field: 20}), 100, max_logprobs=20)
    check_params(SamplingParams(**{field: -1}), 100)
    for asked in (21, -1):
        with pytest.raises(RequestError, match=f"^{field}: must be at most 20"):
            check_params(SamplingParams(**{field: asked}), 100, max_logprobs=20)


def test_min_tokens_that_leave_no_token():
    params = SamplingParams(min_tokens=1, allowed_token_ids=(2, 5), stop_token_ids=(5,))
    with pytest.raises(RequestError, match=r"^min_tokens: "):
        check_params(params, 100, eos_token_ids=(2,))
    check_params(params, 100, eos_token_ids=(3,))


def test_bad_words_need_a_tokenizer_that_can_write_them(tokenizer: ByteTokenizer):
    params = SamplingParams(bad_words=("abc",))
    check_params(params, tokenizer.vocab_size, tokenizer)
    with pytest.raises(RequestError, match=r"^bad_words: needs a tokenizer"):
        check_params(params, 300)
    with pytest.raises(RequestError, match=r"^bad_words: 'abc' cannot be written"):
        check_params(params, 100, tokenizer)


def test_structured_output_needs_a_tokenizer():
    with pytest.raises(RequestError, match=r"^structured_output: needs a tokenizer"):
        check_params(SamplingParams(structured_output={"regex": "a"}), 300)


@pytest.mark.case("SA03")
def test_each_sample_has_a_seed_of_its_own():
    children = with_seed(SamplingParams(n=4, seed=11, temperature=0.5))
    assert [c.n for c in children] == [1] * 4
    assert children[0].seed == 11
    assert len({c.seed for c in children}) == 4
    assert children == with_seed(SamplingParams(n=4, seed=11, temperature=0.5))
    assert children[:2] == with_seed(SamplingParams(n=2, seed=11, temperature=0.5))


def test_a_request_without_a_seed_gets_a_fresh_one():
    first, second = with_seed(SamplingParams())[0], with_seed(SamplingParams())[0]
    assert first.seed is not None
    assert first.seed != second.seed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("n", 0),
        ("seed", -1),
        ("max_tokens", 0),
        ("min_tokens", 17),
        ("stop", [""]),
        ("stop", 5),
        ("stop", {"a": 1}),
        ("stop_token_ids", "12"),
        ("stop_token_ids", [1.0]),
        ("logprobs", -2),
        ("logit_bias", [1]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {1: 101}),
        ("allowed_token_ids", []),
        ("bad_words", [""]),
        ("logits_processors", [3]),
        ("structured_output", "json"),
        ("structured_output", {}),
        ("structured_output", {"jsn": {}}),
        ("structured_output", {"json": {}, "regex": "a"}),
        ("structured_output", {"json": 3}),
        ("structured_output", {"regex": 3}),
        ("structured_output", {"choice": []}),
        ("structured_output", {"choice": "yes"}),
        ("structured_output", {"choice": ["a", ""]}),
    ],
)
def test_a_field_out_of_its_range_is_named(field, value):
    with pytest.raises(RequestError, match=f"^{field}: ") as caught:
        SamplingParams.from_dict({field: value})
    assert caught.value.field == field


def test_an_unknown_field_gets_a_suggestion():
    with pytest.raises(RequestError, match="did you mean 'temperature'"):
        SamplingParams.from_dict({"temprature": 1})
