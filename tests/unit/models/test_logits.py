"""Logits of tiny random models against transformers, whole prompt, float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.config.sections import ModelConfig
from runtime.models import LoadedModel, load_model
from tests.builders import ARCHITECTURES, DenseAttend, make_hf_folder, reference_logits

CPU = torch.device("cpu")
TOLERANCE = 1e-4


def our_logits(loaded: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        hidden = loaded.model.forward(
            torch.tensor(token_ids, dtype=torch.int32),
            torch.arange(len(token_ids)),
            DenseAttend(loaded.attention_shapes),
        )
        return loaded.model.compute_logits(hidden).float()


def prompt(length: int) -> list[int]:
    return torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(1)).tolist()


def check(folder: Path, length: int = 48) -> LoadedModel:
    loaded = load_model(ModelConfig(path=str(folder)), CPU)
    ids = prompt(length)
    ours, theirs = our_logits(loaded, ids), reference_logits(folder, ids, torch.float32)
    assert theirs.std() > 0.3, "a flat reference would prove nothing"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
    return loaded


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture(tmp_path: Path, architecture: str) -> None:
    check(make_hf_folder(tmp_path, architecture))


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("LlamaForCausalLM", {"tie_word_embeddings": True}),
        ("LlamaForCausalLM", {"head_dim": ...}),
        ("LlamaForCausalLM", {"head_dim": None, "num_key_value_heads": None}),
        ("LlamaForCausalLM", {"num_key_value_heads": 1, "num_hidden_layers": 1}),
        ("MistralForCausalLM", {"head_dim": 32}),
        ("Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", {"head_dim": ..., "hidden_act": "swish"}),
    ],
)
def test_head_sizes_and_ties(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    check(make_hf_folder(tmp_path, architecture, **changes))


@pytest.mark.case("LD11")
@pytest.mark.parametrize(
    ("architecture", "changes", "biases"),
    [
        ("LlamaForCausalLM", {"attention_bias": True}, (True, True, False)),
        ("LlamaForCausalLM", {"mlp_bias": True}, (False, False, True)),
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ("Qwen2ForCausalLM", {}, (True, False, False)),
        ("Qwen3ForCausalLM", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases(
    tmp_path: Path, architecture: str, changes: dict[str, Any], biases: tuple[bool, ...]
) -> None:
    spec = check(make_hf_folder(tmp_path, architecture, **changes)).spec
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == biases
    assert spec.qk_norm == (architecture == "Qwen3ForCausalLM")


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("MistralForCausalLM", {"sliding_window": 8}, (8, 8)),
        ("MistralForCausalLM", {"sliding_window": None}, (None, None)),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
            (None, 5),
        ),
        (
            "Qwen3ForCausalLM",
            {
                "use_sliding_window": True,
                "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (5, None),
        ),
        ("Qwen2ForCausalLM", {"sliding_window": 5, "max_window_layers": 0}, (None, None)),
        ("LlamaForCausalLM", {"sliding_window": 5}, (None, None)),
    ],
)
def test_sliding_windows(
    tmp_path: Path, architecture: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    loaded = check(make_hf_folder(tmp_path, architecture, **changes))
    assert loaded.spec.windows == windows
    assert tuple(shape.window for shape in loaded.attention_shapes) == windows


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3-equal": {**LLAMA3, "high_freq_factor": 1.0},
    "yarn": YARN,
    "yarn-attention": {**YARN, "attention_factor": 0.7, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
}


@pytest.mark.parametrize("version", ["v4", "v5"])
@pytest.mark.parametrize("kind", ROPES)
def test_each_rope(tmp_path: Path, kind: str, version: str) -> None:
    rope = ROPES[kind]
    changes: dict[str, Any] = {"rope_parameters": {**rope, "rope_theta": 500.0}}
    if version == "v4":
        changes = {"rope_parameters": ..., "rope_scaling": rope, "rope_theta": 500.0}
    check(make_hf_folder(tmp_path, **changes, max_position_embeddings=128), length=120)


@pytest.mark.case("LD07")
@pytest.mark.parametrize("kind", ["llama3", "llama3-equal"])
def test_llama3_rope_is_not_the_plain_one(tmp_path: Path, kind: str) -> None:
    folder = make_hf_folder(tmp_path, rope_scaling=ROPES[kind], rope_theta=10000.0)
    scaled = our_logits(check(folder, 120), prompt(120))
    plain_folder = make_hf_folder(tmp_path / "plain")
    plain = our_logits(check(plain_folder, 120), prompt(120))
    assert (scaled - plain).abs().max() > 0.1


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)], ids=str
)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_half_precision(
    tmp_path: Path, architecture: str, dtype: torch.dtype, tolerance: float
) -> None:
    folder = make_hf_folder(tmp_path, architecture, dtype=dtype)
    loaded = load_model(ModelConfig(path=str(folder)), CPU)
    assert loaded.dtype == dtype
    ids = prompt(32)
    ours, theirs = our_logits(loaded, ids), reference_logits(folder, ids, dtype)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
