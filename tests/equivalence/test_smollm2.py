"""The real model: greedy tokens in float32 equal transformers', whatever the schedule."""

import pytest
import torch

from runtime import Runtime, RuntimeConfig
from tests.conftest import SMOLLM2
from tests.equivalence.prompts import CHATS, PROMPTS

pytestmark = pytest.mark.slow
NUM_TOKENS = 64
GREEDY = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
NUM_COMPARED = 24
"""Tokens of a run that is held against the baseline, which transformers has confirmed: a schedule
that changed a token would change it soon."""


def config_of(scheduler=None, cache=None, graphs=None):
    return RuntimeConfig(
        model={"path": SMOLLM2, "dtype": "float32", "max_model_len": 256},
        scheduler=scheduler or {},
        cache={"num_blocks": 512, "block_size": 16, **(cache or {})},
        graphs=graphs or {},
        engine={"check_integrity": True},
    )


def run(prompts, *, num_tokens=NUM_COMPARED, scheduler=None, cache=None, graphs=None):
    """Generate; the results and the runtime's counters."""
    with Runtime(config_of(scheduler, cache, graphs)) as runtime:
        results = runtime.generate(prompts, {**GREEDY, "max_tokens": num_tokens})
        return results, runtime.stats()


@pytest.fixture(scope="module")
def baseline():
    """All twenty prompts at once, in one batch, with the default budget."""
    return run(PROMPTS, num_tokens=NUM_TOKENS)[0]


@torch.inference_mode()
def test_tokens_equal_transformers(baseline, smollm2_reference):
    # By induction, tokens are those of greedy decoding if and only if each is the argmax after all
    # tokens before it: one forward over prompt and output checks all 64.
    for result in baseline:
        ids = [*result.prompt_token_ids, *result.token_ids]
        logits = smollm2_reference(torch.tensor([ids])).logits[0]
        first = len(result.prompt_token_ids) - 1
        expected = logits[first:-1].argmax(-1).tolist()
        assert list(result.token_ids) == expected, result.prompt
        assert len(result.token_ids) == NUM_TOKENS


def tokens_of(results):
    return [list(r.token_ids[:NUM_COMPARED]) for r in results]


@pytest.mark.parametrize(
    ("budget", "which"), [(3, slice(6, 10)), (16, slice(4, 14)), (64, slice(20))]
)
def test_chunk_budget_does_not_change_tokens(baseline, budget, which):
    scheduler = {"max_num_batched_tokens": budget, "max_num_seqs": min(budget, 20)}
    results, stats = run(PROMPTS[which], scheduler=scheduler)
    assert tokens_of(results) == tokens_of(baseline[which])
    assert stats.mixed_steps > 0


def test_one_token_a_step_does_not_change_tokens(baseline):
    results, stats = run(PROMPTS[7:9], scheduler={"max_num_batched_tokens": 1, "max_num_seqs": 1})
    assert tokens_of(results) == tokens_of(baseline[7:9])
    assert stats.scheduled_tokens == stats.steps


def test_alone_equals_batched(baseline):
    config = config_of(cache={"prefix_caching": False})
    with Runtime(config) as runtime:
        for index in (0, 5, 8, 13):
            results = runtime.generate(PROMPTS[index], {**GREEDY, "max_tokens": NUM_COMPARED})
            assert tokens_of(results) == tokens_of(baseline[index : index + 1])


def test_cache_off_and_small_blocks_do_not_change_tokens(baseline):
    results, stats = run(
        PROMPTS,
        scheduler={"max_num_batched_tokens": 64, "max_num_seqs": 8},
        cache={"block_size": 4, "prefix_caching": False},
    )
    assert tokens_of(results) == tokens_of(baseline)
    assert stats.cached_tokens == 0


@pytest.mark.case("PC09")
def test_cache_hits_do_not_change_tokens(baseline):
    results, stats = run(
        CHATS,
        scheduler={"max_num_batched_tokens": 64, "max_num_seqs": 2},
        cache={"block_size": 4},
    )
    assert tokens_of(results) == tokens_of(baseline[: len(CHATS)])
    assert stats.cached_tokens > 100


def test_forced_preemption_does_not_change_tokens(baseline):
    results, stats = run(
        PROMPTS,
        scheduler={"max_num_batched_tokens": 64, "max_num_seqs": 8},
        cache={"block_size": 4, "num_blocks": 80},
    )
    assert stats.preemptions > 0
    assert tokens_of(results) == tokens_of(baseline)


def test_prefill_first_does_not_change_tokens(baseline):
    results, stats = run(
        PROMPTS, scheduler={"policy": "prefill_first", "max_num_batched_tokens": 256}
    )
    assert tokens_of(results) == tokens_of(baseline)
    assert stats.mixed_steps == 0


def test_padded_steps_do_not_change_tokens(baseline):
    results, stats = run(
        PROMPTS,
        scheduler={"max_num_batched_tokens": 64, "max_num_seqs": 8},
        graphs={"decode": "padded_eager", "mixed": "padded_eager"},
    )
    assert tokens_of(results) == tokens_of(baseline)
    assert stats.padding_share > 0
