"""Tiny random models: the whole engine's greedy tokens equal transformers', for every schedule.

What the schedule may vary: chunk budget, block size, prefix cache, batching, preemption, policy,
padding. Greedy tokens are checked by one forward of transformers over prompt and output.
"""

import random

import pytest
import torch

from runtime import Runtime, RuntimeConfig
from tests.builders import ARCHITECTURES, make_hf_folder, reference_logits

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
NUM_TOKENS = 16
GREEDY = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}


def make_prompts():
    """Nine prompts of 1 to 70 tokens; five share a prefix of 21."""
    rng = random.Random(5)

    def ids(count):
        return [rng.randrange(3, 128) for _ in range(count)]

    shared = ids(21)
    return [ids(n) for n in (1, 4, 17, 70)] + [shared + ids(n) for n in (1, 2, 9, 16, 30)]


PROMPTS = make_prompts()


def run(folder, prompts=PROMPTS, *, budget=2048, block_size=16, num_blocks=64, **sections):
    cache = {"num_blocks": num_blocks, "block_size": block_size, **sections.pop("cache", {})}
    scheduler = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, 8),
        **sections.pop("scheduler", {}),
    }
    config = RuntimeConfig(
        model={"path": str(folder), "max_model_len": 100},
        scheduler=scheduler,
        cache=cache,
        engine={"check_integrity": True},
        **sections,
    )
    with Runtime(config) as runtime:
        results = runtime.generate(prompts, GREEDY)
        return [list(r.token_ids) for r in results], runtime.stats()


def check_against_transformers(folder, tokens):
    for prompt, output in zip(PROMPTS, tokens, strict=True):
        assert len(output) == NUM_TOKENS
        logits = reference_logits(folder, prompt + output, torch.float32)
        assert output == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = make_hf_folder(tmp_path_factory.mktemp("llama"))
    return folder, run(folder)[0]


def test_llama_equals_transformers(llama):
    check_against_transformers(*llama)


@pytest.mark.parametrize(
    ("architecture", "rope"),
    [("LlamaForCausalLM", rope) for rope in ROPES]
    + [(a, rope) for a in ARCHITECTURES if a != "LlamaForCausalLM" for rope in ("default", "yarn")],
)
def test_each_architecture_and_each_rope(tmp_path, architecture, rope):
    folder = make_hf_folder(tmp_path, architecture, rope_parameters=ROPES[rope])
    whole, _ = run(folder)
    check_against_transformers(folder, whole)
    chunked, stats = run(folder, budget=16, block_size=4)
    assert chunked == whole
    assert stats.mixed_steps > 0


@pytest.mark.parametrize("rope", ["default"])
def test_a_sliding_window_shorter_than_the_prompts(tmp_path, rope):
    folder = make_hf_folder(
        tmp_path, "MistralForCausalLM", sliding_window=11, rope_parameters=ROPES[rope]
    )
    whole, _ = run(folder)
    check_against_transformers(folder, whole)
    assert run(folder, budget=7, block_size=4)[0] == whole


@pytest.mark.parametrize(
    ("budget", "block_size", "caching"),
    # every pair of values
    [
        (budget, (4, 16)[(i + caching) % 2], caching)
        for i, budget in enumerate((1, 3, 16, 64, 2048))
        for caching in (True, False)
    ],
)
def test_budget_block_size_and_cache_do_not_change_tokens(llama, budget, block_size, caching):
    folder, expected = llama
    tokens, stats = run(
        folder, budget=budget, block_size=block_size, cache={"prefix_caching": caching}
    )
    assert tokens == expected
    assert (stats.cached_tokens > 0) == caching
    assert stats.steps >= sum(map(len, PROMPTS)) // max(budget, 64)


def test_alone_equals_batched(llama):
    folder, expected = llama
    for prompt, output in zip(PROMPTS, expected, strict=True):
        assert run(folder, [prompt])[0] == [output]


@pytest.mark.parametrize(
    ("block_size", "order", "caching"),
    # every pair of values
    [
        (block_size, order, (i + j) % 2 == 0)
        for i, block_size in enumerate((1, 4, 16))
        for j, order in enumerate(("fcfs", "priority"))
    ],
)
def test_preemption_does_not_change_tokens(llama, block_size, order, caching):
    folder, expected = llama
    tokens, stats = run(
        folder,
        budget=16,
        block_size=block_size,
        num_blocks=-(-112 // block_size),
        scheduler={"order": order},
        cache={"prefix_caching": caching},
    )
    assert stats.preemptions > 0
    assert tokens == expected


def test_prefill_first_and_whole_prompts_do_not_change_tokens(llama):
    folder, expected = llama
    tokens, stats = run(folder, budget=128, scheduler={"policy": "prefill_first"})
    assert tokens == expected
    assert stats.mixed_steps == 0
    assert run(folder, budget=128, scheduler={"chunked_prefill": False})[0] == expected


@pytest.mark.parametrize("cap", [1, 5])
def test_a_long_prefill_cap_does_not_change_tokens(llama, cap):
    folder, expected = llama
    assert run(folder, scheduler={"long_prefill_token_threshold": cap})[0] == expected


@pytest.mark.parametrize("decode", ["eager", "padded_eager"])
@pytest.mark.parametrize("mixed", ["eager", "padded_eager"])
def test_padding_does_not_change_tokens(llama, decode, mixed):
    folder, expected = llama
    tokens, stats = run(folder, budget=40, graphs={"decode": decode, "mixed": mixed})
    assert tokens == expected
    assert (stats.padding_share > 0) == ("padded_eager" in (decode, mixed))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("float16", 0.03)])
def test_16_bit_logits_stay_near_float32(tmp_path, architecture, dtype, tolerance):
    # Near ties may flip tokens in 16 bits, so the chosen token's float32 logit is compared.
    folder = make_hf_folder(tmp_path, architecture)
    config = RuntimeConfig(
        model={"path": str(folder), "max_model_len": 100, "dtype": dtype},
        cache={"num_blocks": 64, "block_size": 16},
    )
    with Runtime(config) as runtime:
        for result in runtime.generate(PROMPTS, GREEDY):
            ids = [*result.prompt_token_ids, *result.token_ids]
            logits = reference_logits(folder, ids, torch.float32)
            logits = logits[len(result.prompt_token_ids) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
            assert (logits.max(-1).values - chosen).max() < tolerance
