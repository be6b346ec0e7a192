"""Q8_0 matrices of a GGUF file that stay in 8 bits: which ones, their values, and what is said."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.models import LoadedModel, check_files, load_model, read_spec, weight_bytes
from runtime.models._gguf_header import read_header
from runtime.ops.weights import PackedWeight, PlainWeight, Q8Weight
from tests.builders import make_gguf, make_hf_folder
from tests.unit.ops.native_ops import needs_compiler

CPU = torch.device("cpu")
ALL = {
    *(f"layers.{i}.{name}.weight" for i in (0, 1) for name in ("qkv", "output", "gate_up", "down")),
    "embedding.weight",
    "head.weight",
}


def config_of(path: Path, **changes: Any) -> ModelConfig:
    return ModelConfig(path=str(path), cache_dir=str(path.parent / "cache"), **changes)


def load(path: Path, **changes: Any) -> LoadedModel:
    return load_model(config_of(path, **changes), CPU)


def forms_of(loaded: LoadedModel) -> dict[str, type]:
    return {name: type(linear.form) for name, linear in loaded.model._linears.items()}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_gguf(tmp_path / "t.gguf", make_hf_folder(tmp_path / "hf"), "llama", "Q8_0")


@needs_compiler
@pytest.mark.parametrize(
    ("gguf_name", "architecture", "changes"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("llama", "LlamaForCausalLM", {"attention_bias": True}),
        ("qwen3", "Qwen3ForCausalLM", {"head_dim": 32}),
    ],
)
def test_kept_weights_are_the_widened_ones(
    tmp_path: Path, gguf_name: str, architecture: str, changes: dict[str, Any]
) -> None:
    """Rows in Hugging Face's order, parts fused, in panels or not: the same values to the bit."""
    folder = make_hf_folder(tmp_path / "hf", architecture, **changes)
    path = make_gguf(tmp_path / "m.gguf", folder, gguf_name, "Q8_0")
    expected = ALL - ({"head.weight"} if changes.get("tie_word_embeddings") else set())
    for quantization, dtype, form in (
        ("auto", "bfloat16", PackedWeight),
        ("q8_0", "bfloat16", PackedWeight),
        ("q8_0", "float32", Q8Weight),
    ):
        kept = load(path, quantization=quantization, dtype=dtype)
        assert kept.spec.q8_0 == expected
        assert forms_of(kept) == dict.fromkeys(expected, form)
        widened = load(path, quantization="none", dtype=dtype)
        assert not widened.spec.q8_0
        theirs, ours = widened.model.parameters, kept.model.parameters
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert torch.equal(ours[name], theirs[name]), name
        ids = torch.tensor([5, 0, 127])
        assert torch.equal(kept.model.embedding(ids), widened.model.embedding(ids))


@needs_compiler
def test_other_types_beside_are_widened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fused matrix stays only if each of its parts is in Q8_0; Q4_0 stays in its own way."""
    kinds = {"blk.0.attn_v.weight": "F16", "blk.1.ffn_down.weight": "Q4_0", "output.weight": "F32"}
    folder = make_hf_folder(tmp_path / "hf")
    path = make_gguf(tmp_path / "m.gguf", folder, "llama", "Q8_0", _kinds=kinds)
    with caplog.at_level(logging.INFO):
        kept = load(path)
    assert kept.spec.q8_0 == ALL - {"layers.0.qkv.weight", "layers.1.down.weight", "head.weight"}
    assert set(kept.spec.stored) == {"layers.1.down.weight"}
    assert "8 of 10 matrices stay in Q4_0, Q8_0" in caplog.text
    assert "model.quantization: none widens them to bfloat16" in caplog.text
    theirs = load(path, quantization="none").model.parameters
    for name, parameter in kept.model.parameters.items():
        assert torch.equal(parameter, theirs[name]), name
    forms = {name: linear.form for name, linear in kept.model._linears.items()}
    assert {form.panels.values.dtype for form in forms.values()} == {torch.uint8, torch.bfloat16}


@needs_compiler
def test_bytes_are_those_that_are_kept(tiny: Path) -> None:
    """Sizes that fill their panels: what the spec says is what the forms and the rest take."""
    kept = load(tiny)
    rest = [t for name, t in kept.model.loaded.items() if name not in kept.model._linears]
    linears = sum(linear.form.num_bytes for linear in kept.model._linears.values())
    assert weight_bytes(kept.spec) == linears + sum(tensor.nbytes for tensor in rest)
    assert set(kept.model.loaded).isdisjoint(kept.spec.q8_0)
    assert weight_bytes(kept.spec) < 0.54 * weight_bytes(load(tiny, quantization="none").spec)


def test_auto_keeps_only_where_kernels_read_it(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_spec(config_of(tiny)).q8_0 == ALL
    assert not read_spec(config_of(tiny, dtype="float32")).q8_0
    assert not read_spec(config_of(tiny, quantization="int8")).q8_0
    with caplog.at_level(logging.INFO):
        spec = read_spec(config_of(tiny), torch.device("cuda"))
    assert not spec.q8_0
    assert weight_bytes(spec) == weight_bytes(read_spec(config_of(tiny, quantization="none")))
    assert "10 matrices in Q8_0 are widened to bfloat16" in caplog.text
    assert "the device is cuda" in caplog.text
    assert read_spec(config_of(tiny, quantization="q8_0"), torch.device("cuda")).q8_0 == ALL


def test_without_a_compiler_auto_widens_once_and_q8_0_at_each_call(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("linear", "linear_paths"):
        monkeypatch.setattr(f"runtime.ops.{module}.native_ops", lambda: None)
    with caplog.at_level(logging.INFO):
        assert set(forms_of(load(tiny)).values()) == {PlainWeight}
    assert "they could not be built" in caplog.text
    assert set(forms_of(load(tiny, quantization="q8_0")).values()) == {Q8Weight}


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_q8_0_where_there_is_none(tmp_path: Path, kind: str) -> None:
    path = make_hf_folder(tmp_path / "hf")
    if kind == "gguf":
        path = make_gguf(tmp_path / "m.gguf", path, "llama", "BF16")
    with pytest.raises(ConfigError, match=r"model.quantization: q8_0 keeps.*auto, none, int8"):
        read_spec(config_of(path, quantization="q8_0"))


def test_scales_that_are_not_finite_are_refused(tiny: Path) -> None:
    info = read_header(tiny).tensors["blk.1.ffn_up.weight"]
    content = bytearray(tiny.read_bytes())
    content[info.offset + 34 : info.offset + 36] = struct.pack("<e", float("nan"))
    tiny.write_bytes(content)
    with pytest.raises(ModelError, match=r"t.gguf: the tensor blk.1.ffn_up.weight holds scales"):
        load(tiny, quantization="q8_0", dtype="float32")


def test_the_conversion_is_looked_for_in_its_own_size(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        "runtime.models._gguf_convert.check_writable",
        lambda place, *, needed_bytes: asked.append(needed_bytes),
    )
    for quantization in ("auto", "none"):
        config = config_of(tiny, quantization=quantization)
        check_files(config, read_spec(config))
    assert asked[0] < 0.54 * asked[1]


def test_either_conversion_serves_where_none_can_be_written(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the two is loaded is settled by the kernels, and those may come later."""

    def full(place: Path, *, needed_bytes: int) -> None:
        raise ConfigError("the disk is full")

    monkeypatch.setattr("runtime.models._gguf_convert.check_writable", full)
    config = config_of(tiny)
    assert read_spec(config).q8_0
    with pytest.raises(ConfigError, match="full"):
        check_files(config, read_spec(config))
    load(tiny, quantization="none")
    check_files(config, read_spec(config))
    other = config_of(tiny, dtype="float32")
    with pytest.raises(ConfigError, match="full"):
        check_files(other, read_spec(other))
