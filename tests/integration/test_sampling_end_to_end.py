"""Sampling through the whole engine, on the real model: what batching and preemption must not
change, log-probabilities against transformers, output that obeys a schema."""

import json
import os
import re

import pytest
import torch

from runtime import Runtime, RuntimeConfig
from tests.conftest import SMOLLM2

pytestmark = pytest.mark.slow
SAMPLES = int(os.environ.get("SCHEMA_SAMPLES", "12"))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "home": {"type": ["boolean", "null"]},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}


def make_runtime(**sections):
    sections.setdefault("cache", {"num_blocks": 1024, "block_size": 4})
    return Runtime(
        RuntimeConfig(model={"path": SMOLLM2, "dtype": "float32", "max_model_len": 160}, **sections)
    )


@pytest.fixture(scope="module")
def runtime(smollm2_path):
    with make_runtime() as made:
        yield made


def chat(text):
    return [{"role": "user", "content": text}]


@torch.inference_mode()
def test_logprobs_equal_transformers(runtime, smollm2_reference):
    params = {"temperature": 0.8, "seed": 3, "top_k": 5, "max_tokens": 12, "ignore_eos": True}
    params |= {"logprobs": 4, "prompt_logprobs": 2}
    prompts = ["The three laws of motion are", chat("Name a river."), "Once upon a time"]
    for result in runtime.generate(prompts, params):
        ids = torch.tensor([[*result.prompt_token_ids, *result.token_ids]])
        exact = smollm2_reference(ids).logits[0].log_softmax(-1)
        assert result.prompt_logprobs[0] is None
        given = [*result.prompt_logprobs[1:], *result.logprobs]
        assert len(given) == ids.shape[1] - 1
        for position, entries in enumerate(given):
            row = exact[position]
            assert entries[0].token_id == ids[0, position + 1]
            for entry in entries:
                assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            is_prompt = position < result.num_prompt_tokens - 1
            top = row.topk(2 if is_prompt else 4).indices.tolist()
            assert [e.token_id for e in entries[1:]] == [i for i in top if i != entries[0].token_id]


def test_seeds_reproduce_across_batch_sizes_and_preemptions(runtime):
    prompts = [f"Story number {i}: once there was" for i in range(6)]
    params = [
        {"temperature": 1.0, "top_p": 0.9, "seed": i, "max_tokens": 24, "ignore_eos": True}
        | ({"presence_penalty": 0.5, "repetition_penalty": 1.2} if i % 2 else {"min_p": 0.02})
        for i in range(6)
    ]
    alone = [runtime.generate(p, s)[0].token_ids for p, s in zip(prompts, params, strict=True)]
    assert [r.token_ids for r in runtime.generate(prompts, params)] == alone
    with make_runtime(
        cache={"num_blocks": 40, "block_size": 4},
        scheduler={"max_num_batched_tokens": 16, "max_num_seqs": 6},
        engine={"check_integrity": True},
    ) as small:
        tight = [r.token_ids for r in small.generate(prompts, params)]
        assert small.stats().preemptions > 0
    assert tight == alone


@pytest.mark.case("SA17")
def test_prompt_logprobs_come_once_across_chunks_and_preemption(runtime):
    prompts = [list(range(100 + i, 140 + i)) for i in range(4)]
    params = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "prompt_logprobs": 0}
    whole = runtime.generate(prompts, params)
    with make_runtime(
        cache={"num_blocks": 40, "block_size": 4},
        scheduler={"max_num_batched_tokens": 15, "max_num_seqs": 4},
    ) as small:
        cut = small.generate(prompts, params)
        assert small.stats().preemptions > 0
    for a, b in zip(whole, cut, strict=True):
        assert a.token_ids == b.token_ids
        assert len(b.prompt_logprobs) == 40
        for x, y in zip(a.prompt_logprobs[1:], b.prompt_logprobs[1:], strict=True):
            assert x[0].token_id == y[0].token_id
            assert x[0].logprob == pytest.approx(y[0].logprob, abs=1e-4)


def test_output_obeys_a_json_schema(runtime):
    params = [
        {
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": 110,
            "structured_output": {"json": PERSON},
        }
        for seed in range(SAMPLES)
    ]
    results = runtime.generate([chat("Describe a person as JSON.")] * SAMPLES, params)
    for result in results:
        person = json.loads(result.text)
        assert set(person) == {"name", "age", "tags", "home"}
        assert isinstance(person["name"], str)
        assert len(person["name"]) <= 20
        assert 0 <= person["age"] <= 120
        assert set(person["tags"]) <= {"red", "green", "blue"}
        assert person["home"] in (True, False, None)
        assert result.finish_reason == "stop"


def test_constraints_of_each_kind_beside_free_requests(runtime):
    grammar = 'start: "<" NAME ">"\nNAME: /[a-z]{3,6}/\n'
    constraints = [
        {"choice": ["yes", "no", "maybe"]},
        {"regex": r"\d{3}-[A-F]{2}"},
        {"grammar": grammar},
    ]
    shapes = [r"yes|no|maybe", r"\d{3}-[A-F]{2}", r"<[a-z]{3,6}>"]
    free = {"temperature": 0.0, "max_tokens": 20}
    constrained = [
        {"temperature": 1.0, "seed": 5, "max_tokens": 40, "structured_output": c}
        for c in constraints
    ]
    prompt = chat("Is water wet?")
    alone = runtime.generate(prompt, free)[0]
    results = runtime.generate([prompt] * 4, [free, *constrained])
    assert results[0].token_ids == alone.token_ids
    for result, shape in zip(results[1:], shapes, strict=True):
        assert re.fullmatch(shape, result.text), result.text
        assert result.finish_reason == "stop"
