"""Matrices of a GGUF file that stay as they are stored: which ones, their values, what is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.errors import ModelError
from runtime.models import load_model, read_spec, weight_bytes
from runtime.models._gguf_header import read_header
from runtime.ops import STORED_KINDS, SplitWeight
from runtime.ops.weights import PackedWeight, PlainWeight
from tests.builders import SCALES_AT, make_gguf, make_hf_folder
from tests.unit.models.test_gguf_q8_0 import ALL, config_of, forms_of, load
from tests.unit.ops.native_ops import needs_compiler

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
"""Rows that are a multiple of a super-block."""


def make(folder: Path, kind: str, architecture: str = "llama", **changes: Any) -> Path:
    kinds = changes.pop("kinds", {})
    names = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    source = make_hf_folder(folder / "hf", names[architecture], **WIDE, **changes)
    return make_gguf(folder / "m.gguf", source, architecture, kind, _kinds=kinds)


def check_same(ours: Any, theirs: Any, kind: str) -> None:
    """To the bit; with mins, whose sum is rounded once or twice, within a rounding of bfloat16."""
    assert ours.model.parameters.keys() == theirs.model.parameters.keys()
    for name, expected in theirs.model.parameters.items():
        actual = ours.model.parameters[name]
        if len(SCALES_AT[kind]) == 1:
            assert torch.equal(actual, expected), name
        else:
            torch.testing.assert_close(actual, expected, rtol=2**-7, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("kind", [kind.upper() for kind in STORED_KINDS])
def test_kept_weights_are_the_widened_ones(tmp_path: Path, kind: str) -> None:
    """Rows in Hugging Face's order, parts fused, in panels: the same values."""
    path = make(tmp_path, kind, attention_bias=kind == "Q4_K")
    kept, widened = load(path), load(path, quantization="none")
    assert set(kept.spec.stored) == ALL
    assert not widened.spec.stored
    assert not read_spec(config_of(path, dtype="float32")).stored
    assert forms_of(kept) == dict.fromkeys(ALL, PackedWeight)
    assert forms_of(widened) == dict.fromkeys(ALL - {"embedding.weight"}, PackedWeight)
    check_same(kept, widened, kind)
    ids = torch.tensor([5, 0, 127])
    torch.testing.assert_close(
        kept.model.embedding(ids), widened.model.embedding(ids), rtol=2**-7, atol=1e-4
    )


@needs_compiler
def test_a_fused_matrix_of_several_types_is_kept_part_by_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {
        "blk.0.attn_v.weight": "Q6_K",
        "blk.1.ffn_up.weight": "Q5_K",
        "output.weight": "Q6_K",
        "blk.1.attn_k.weight": "F16",
        "blk.1.ffn_down.weight": "Q8_0",
    }
    path = make(tmp_path, "Q4_K", kinds=kinds)
    with caplog.at_level(logging.INFO):
        kept = load(path)
    assert set(kept.spec.stored) == ALL - {"layers.1.qkv.weight", "layers.1.down.weight"}
    assert kept.spec.q8_0 == {"layers.1.down.weight"}
    parts = {name: [p.kind for p in found] for name, found in kept.spec.stored.items()}
    assert parts["layers.0.qkv.weight"] == ["q4_k", "q6_k"]
    assert parts["layers.1.gate_up.weight"] == ["q4_k", "q5_k"]
    assert parts["layers.0.gate_up.weight"] == ["q4_k"]
    forms = forms_of(kept)
    assert {name for name, form in forms.items() if form is SplitWeight} == {
        "layers.0.qkv.weight",
        "layers.1.gate_up.weight",
    }
    assert "9 of 10 matrices stay in Q4_K, Q5_K, Q6_K, Q8_0" in caplog.text
    check_same(kept, load(path, quantization="none"), "Q4_K")


@needs_compiler
def test_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    path = make(tmp_path, "Q4_K", num_hidden_layers=4)
    kept = load(path)
    matrices = sum(linear.form.num_bytes for linear in kept.model._linears.values())
    assert matrices < 1.04 * weight_bytes(kept.spec)
    assert weight_bytes(kept.spec) < path.stat().st_size


def test_without_kernels_they_are_widened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path, "Q4_0")
    for module in ("linear", "linear_paths"):
        monkeypatch.setattr(f"runtime.ops.{module}.native_ops", lambda: None)
    with caplog.at_level(logging.INFO):
        assert set(forms_of(load(path)).values()) == {PlainWeight}
    assert "10 matrices in Q4_0 are widened to bfloat16" in caplog.text
    assert "they could not be built" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert not read_spec(config_of(path), torch.device("cuda")).stored
    assert "the device is cuda" in caplog.text


@needs_compiler
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q3_K", "Q2_K"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scales_that_are_not_finite_are_refused(tmp_path: Path, kind: str, wrong: float) -> None:
    path = make(tmp_path, kind)
    raw = bytearray(path.read_bytes())
    info = read_header(path).tensors["blk.0.ffn_gate.weight"]
    at = info.offset + SCALES_AT[kind][-1]
    raw[at : at + 2] = np.float16(wrong).tobytes()
    path.write_bytes(raw)
    with pytest.raises(
        ModelError, match=r"blk\.0\.ffn_gate\.weight holds scales that are not finite"
    ):
        load_model(config_of(path), torch.device("cpu"))
