"""`SamplingParams.needs_known_tokens` against the sampler: who does not need them does not look."""

import numpy as np
import pytest
import torch

from runtime.data.params import SamplingParams
from tests.unit.sampling.helpers import Bench, ByteTokenizer

TOKENIZER = ByteTokenizer()
VOCAB = TOKENIZER.vocab_size
FREE = [
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"top_p": 0.8, "top_k": 40},
    {"min_p": 0.1},
    {"logit_bias": {3: 2.0}},
    {"allowed_token_ids": [1, 2, 3, 4]},
    {"min_tokens": 4, "stop_token_ids": [5]},
    {"prompt_logprobs": 1},
]
NEEDY = [
    {"repetition_penalty": 3.0},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0},
    {"bad_words": ["aq"]},
    {"logits_processors": [lambda ids, logits: logits.roll(sum(ids))]},
]


def tokens(params, known):
    """What is sampled at 40 positions with other tokens before them."""
    output = np.full(40, known, np.int64).tolist()
    found = []
    for length in range(1, 41):
        bench = Bench(
            [SamplingParams(seed=1, max_tokens=50, **params)],
            VOCAB,
            outputs=[output[:length]],
            tokenizer=TOKENIZER,
        )
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(length))
        logits[0, TOKENIZER.encode("q")[0]] += 6.0
        found += bench.sample(logits).token_ids.tolist()
    return found


@pytest.mark.parametrize("params", FREE, ids=str)
def test_who_does_not_need_them_gets_the_same_with_any(params):
    assert not SamplingParams(max_tokens=50, **params).needs_known_tokens
    assert tokens(params, 7) == tokens(params, TOKENIZER.encode("a")[0])


@pytest.mark.parametrize("params", NEEDY, ids=lambda p: next(iter(p)))
def test_who_needs_them_gets_others(params):
    assert SamplingParams(max_tokens=50, **params).needs_known_tokens
    assert tokens(params, 7) != tokens(params, TOKENIZER.encode("a")[0])


def test_structured_output_and_logprobs_need_them():
    assert SamplingParams(structured_output={"regex": "a"}).needs_known_tokens
    assert SamplingParams(logprobs=0).needs_known_tokens
