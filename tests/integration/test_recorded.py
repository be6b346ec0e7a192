"""`graphs.decode: recorded` through the whole runtime: tokens are those of eager steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_backends import compiler_problem
from runtime import Runtime, RuntimeConfig
from tests.builders import make_gguf, make_hf_folder

pytestmark = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(3, 128) for _ in range(n)] for n in (1, 5, 17, 40, 3, 9)]


def generate(folder: Path, mode: str, model: dict[str, Any], **sections: Any) -> tuple[Any, Any]:
    config = RuntimeConfig(
        model={"path": str(folder), "max_model_len": 80, **model},
        cache={"num_blocks": 20, "block_size": 8},  # too few for all: some are preempted
        scheduler={"max_num_seqs": 5, "max_num_batched_tokens": 24},
        graphs={"decode": mode, "lazy_after": 1 if mode == "recorded" else 0},
        **sections,
    )
    with Runtime(config) as runtime:
        found = [result.token_ids for result in runtime.generate(prompts(), GREEDY)]
        return found, runtime.stats()


@pytest.mark.parametrize(
    "model",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "quantization": "int8"},
        {"dtype": "float32", "quantization": "int8"},
        {"dtype": "bfloat16", "quantization": "q8_0"},
        {"dtype": "float32", "quantization": "q8_0"},
    ],
    ids=lambda model: "-".join(model.values()),
)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_tokens_are_those_of_eager_steps(
    tmp_path: Path, model: dict, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_hf_folder(tmp_path, "Qwen3ForCausalLM", head_dim=16, dtype=torch.float32)
    if model.get("quantization") == "q8_0":
        # the file has none
        monkeypatch.setattr("runtime.front.build.load_tokenizer", lambda _: None)
        folder = make_gguf(tmp_path / "m.gguf", folder, "qwen3", "Q8_0")
        model = {**model, "cache_dir": str(tmp_path / "cache")}
    engine = {"threads": num_threads, "check_integrity": True}
    expected, _ = generate(folder, "eager", model, engine=engine)
    actual, stats = generate(folder, "recorded", model, engine=engine)
    assert actual == expected
    assert stats.preemptions
    assert stats.step_kinds["decode"] > 20
    assert stats.padding_share == 0
    assert not stats.failed_steps
    assert len(stats.graphs.captured["buckets"]) >= 4
    assert "capture failed" not in stats.graphs.eager_reasons
