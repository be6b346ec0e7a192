"""Reading a config into a ModelSpec, and refusing what is not supported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.models import load_model, read_spec, smaller_weights, weight_bytes
from runtime.models._rope import inverse_frequencies
from runtime.models._rope_spec import RopeSpec
from tests.builders import ARCHITECTURES, make_hf_folder, write_config

CPU = torch.device("cpu")


def spec_of(folder: Path, **changes: Any):
    return read_spec(ModelConfig(path=str(folder), format="dummy", **changes))


@pytest.mark.case("LD05")
@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": ..., "rope_scaling": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_parameters": None, "rope_scaling": None, "rope_theta": 1e6},
        {"rope_parameters": ..., "rope_scaling": {}, "rope_theta": 1e6},
        {
            "rope_parameters": {
                "type": "default",
                "rope_theta": 1e6,
                "mrope_section": [[2, 3], [3]],
            }
        },
    ],
)
def test_default_rope_in_every_spelling(tmp_path: Path, changes: dict[str, Any]) -> None:
    rope = spec_of(write_config(tmp_path, **changes)).rope
    assert (rope.type, rope.theta) == ("default", 1e6)
    frequencies, scale = inverse_frequencies(rope, 16)
    expected = 1e6 ** -(torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(frequencies, expected)
    assert scale == 1.0


def test_no_rope_settings_at_all(tmp_path: Path) -> None:
    rope = spec_of(write_config(tmp_path, rope_parameters=...)).rope
    assert (rope.type, rope.theta) == ("default", 10000.0)


@pytest.mark.case("LD09")
def test_type_is_read_as_rope_type(tmp_path: Path) -> None:
    values = {"factor": 4.0, "original_max_position_embeddings": 64}
    old = spec_of(write_config(tmp_path / "old", rope_scaling={"type": "yarn", **values})).rope
    new = spec_of(write_config(tmp_path / "new", rope_scaling={"rope_type": "yarn", **values})).rope
    assert old == new
    assert (old.type, old.factor, old.original_max_position) == ("yarn", 4.0, 64)


@pytest.mark.case("LD09")
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_unknown_rope_type_is_an_error(tmp_path: Path, key: str) -> None:
    folder = write_config(tmp_path, rope_scaling={key: "foo", "factor": 2.0})
    with pytest.raises(ModelError, match=r"config.json: rope_scaling: .*'foo'.*default, linear"):
        spec_of(folder)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "linear"}, "factor must be a number above 0, not None"),
        ({"rope_type": "linear", "factor": "4"}, "factor must be a number above 0, not '4'"),
        ({"rope_type": "yarn", "factor": 0}, "factor must be a number above 0, not 0"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor must be a number"),
        ({"rope_type": "default", "rope_theta": float("nan")}, "rope_theta must be a number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "settings by layer type"),
        ([1], "must be a mapping"),
    ],
)
def test_bad_rope_values(tmp_path: Path, rope: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(write_config(tmp_path, rope_parameters=rope))


@pytest.mark.case("LD07")
def test_llama3_with_equal_bounds_at_a_wavelength_is_finite() -> None:
    bound = 32 / (2 * math.pi)
    rope = RopeSpec("llama3", 1e4, 8.0, 32, low_freq_factor=bound, high_freq_factor=bound)
    frequencies, _ = inverse_frequencies(rope, 16)
    assert frequencies.isfinite().all()
    torch.testing.assert_close(frequencies[1:], 1e4 ** -(torch.arange(2, 16, 2) / 16) / 8)


def test_rope_bounds_the_context(tmp_path: Path) -> None:
    def limits(rope: dict[str, Any]) -> tuple[int, int]:
        spec = spec_of(write_config(tmp_path, rope_parameters=rope))
        return spec.max_position, spec.position_limit

    assert limits({"rope_type": "default"}) == (256, 256)
    assert limits({"rope_type": "dynamic", "factor": 4.0}) == (256, 256)
    assert limits({"rope_type": "linear", "factor": 4.0}) == (256, 1024)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert limits(yarn) == (1024, 1024)
    assert limits({**yarn, "original_max_position_embeddings": 64}) == (256, 256)


def test_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    assert spec_of(folder, max_model_len=256).max_position == 256
    with pytest.raises(ConfigError, match=r"max_model_len: 257 is more than the model.s 256"):
        spec_of(folder, max_model_len=257)
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    folder = write_config(tmp_path, rope_parameters=dynamic)
    with pytest.raises(ConfigError, match="dynamic rope beyond it"):
        spec_of(folder, max_model_len=257)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "unsupported architecture 'GemmaForCausalLM'; supported: LlamaForCausalLM, Mistral",
        ),
        ({"architectures": ...}, "architectures must list one name, not None"),
        ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures must list one name"),
        ({"hidden_act": "gelu"}, "unsupported hidden_act 'gelu'; supported: silu"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantized checkpoints \(awq\)"),
        ({"hidden_size": ...}, "the key hidden_size is missing"),
        ({"vocab_size": "128"}, "vocab_size: .*'128'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: .*greater than or equal to 1"),
        ({"num_key_value_heads": 3}, "4 heads need a divisor"),
        ({"head_dim": 15}, r"an even head_dim \(got 15\)"),
        ({"head_dim": ..., "hidden_size": 66}, "hidden_size 66 is not a multiple"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"eos_token_id": ["2"]}, "eos_token_id"),
        ({"dtype": "float8_e4m3fn"}, "dtype float8_e4m3fn is not one the runtime computes in"),
    ],
)
def test_unsupported_configs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(write_config(tmp_path, **changes))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["full_attention"], "must name 2 layers.*got 1"),
        (["full_attention", "chunked_attention"], "with chunked_attention"),
    ],
)
def test_bad_layer_types(tmp_path: Path, types: list[str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(write_config(tmp_path, "Qwen3ForCausalLM", layer_types=types))


def test_window_defaults_of_mistral(tmp_path: Path) -> None:
    """Absent means 4096, null means none; a window that spans any context is none."""

    def windows(**changes: Any) -> tuple[int | None, ...]:
        return spec_of(write_config(tmp_path, "MistralForCausalLM", **changes)).windows

    assert windows(sliding_window=..., max_position_embeddings=8192) == (4096, 4096)
    assert windows(sliding_window=None, max_position_embeddings=8192) == (None, None)
    assert windows(sliding_window=..., max_position_embeddings=4096) == (None, None)


@pytest.mark.parametrize(
    ("config_eos", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (None, None, ()),
        (2, {"temperature": 0.6}, (2,)),
        (2, {"eos_token_id": 7}, (7,)),
        (2, {"eos_token_id": [7, 2, 7]}, (7, 2)),
    ],
)
def test_eos_from_either_file(
    tmp_path: Path, config_eos: Any, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    folder = write_config(tmp_path, eos_token_id=config_eos)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert spec_of(folder).eos_token_ids == expected


def test_generation_defaults_hold_only_what_is_set(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    (folder / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": true, "pad_token_id": 0}'
    )
    assert spec_of(folder).generation_defaults == {
        "temperature": 0.6,
        "top_k": 20,
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_bytes_are_those_of_the_tensors(tmp_path: Path, architecture: str, tied: bool) -> None:
    folder = make_hf_folder(tmp_path, architecture, tie_word_embeddings=tied)
    config = ModelConfig(path=str(folder), dtype="bfloat16")
    spec = read_spec(config)
    parameters = load_model(config, CPU).model.parameters
    assert weight_bytes(spec) == sum(parameter.nbytes for parameter in parameters.values())
    assert spec.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_reading_a_spec_imports_no_torch(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    code = (
        "import sys; from runtime.config.sections import ModelConfig; "
        "from runtime.models import read_spec; "
        f"read_spec(ModelConfig(path={str(folder)!r}, format='dummy')); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"dtype": "float32"},
            "set model.dtype to bfloat16 or float16 or model.quantization to int8, or take",
        ),
        ({"dtype": "bfloat16"}, "set model.quantization to int8, or take"),
        (
            {"dtype": "float32", "quantization": "int8"},
            "set model.dtype to bfloat16 or float16, or take",
        ),
        ({"dtype": "float16", "quantization": "int8"}, "take"),
    ],
)
def test_what_makes_weights_smaller_is_not_set_already(
    tmp_path: Path, changes: dict[str, str], expected: str
) -> None:
    spec = spec_of(write_config(tmp_path), **changes)
    assert smaller_weights(spec) == f"{expected} a smaller model"


def test_weights_in_q8_0_are_not_advised_to_be_int8(tmp_path: Path) -> None:
    spec = replace(spec_of(write_config(tmp_path), dtype="bfloat16"), q8_0=frozenset({"a"}))
    assert smaller_weights(spec) == "take a smaller model"
