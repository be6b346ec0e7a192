"""Loading folders: which tensors count, where they go, and what is said when they are wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.models import check_files, load_model, read_spec
from tests.builders import make_hf_folder, write_config

CPU = torch.device("cpu")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load(folder: Path, **changes):
    return load_model(ModelConfig(path=str(folder), **changes), CPU).model.parameters


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


def test_fused_weights_hold_their_parts_in_order(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, "Qwen3ForCausalLM", attention_bias=True)
    stored, ours = load_file(folder / SINGLE), load(folder)
    for layer in range(2):
        attention = f"model.layers.{layer}.self_attn."
        for kind in ("weight", "bias"):
            parts = [stored[f"{attention}{name}_proj.{kind}"] for name in "qkv"]
            assert torch.equal(ours[f"layers.{layer}.qkv.{kind}"], torch.cat(parts))
        norms = [stored[f"{attention}{name}_norm.weight"] for name in "qqqqkk"]
        assert torch.equal(ours[f"layers.{layer}.head_norm.weight"], torch.stack(norms))
        mlp = f"model.layers.{layer}.mlp."
        parts = [stored[f"{mlp}{name}_proj.weight"] for name in ("gate", "up")]
        assert torch.equal(ours[f"layers.{layer}.gate_up.weight"], torch.cat(parts))
    assert torch.equal(ours["head.weight"], stored["lm_head.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_asked_type_is_kept(tmp_path: Path, dtype: str) -> None:
    folder = make_hf_folder(tmp_path, dtype=torch.float32)
    stored, ours = load_file(folder / SINGLE), load(folder, dtype=dtype)
    assert {str(p.dtype) for p in ours.values()} == {f"torch.{dtype}"}
    expected = stored["model.norm.weight"].to(getattr(torch, dtype))
    assert torch.equal(ours["norm.weight"], expected)


@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype", "neither"])
def test_auto_is_the_type_of_the_checkpoint(tmp_path: Path, spelling: str) -> None:
    folder = make_hf_folder(tmp_path, dtype=torch.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    value = config.pop("dtype")
    if spelling != "neither":
        config[spelling] = value
    (folder / "config.json").write_text(json.dumps(config))
    assert read_spec(ModelConfig(path=str(folder))).dtype == "bfloat16"


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    rewrite(folder, lambda tensors: tensors["model.norm.weight"].fill_(1e6))
    with pytest.raises(ModelError, match=r"model.norm.weight has values beyond float16"):
        load(folder, dtype="float16")
    assert load(folder, dtype="bfloat16")["norm.weight"].isfinite().all()


def test_shards_load_as_one(tmp_path: Path) -> None:
    whole = make_hf_folder(tmp_path / "whole")
    cut = make_hf_folder(tmp_path / "cut", shard_bytes=40_000)
    assert len(list(cut.glob("model-*.safetensors"))) > 2
    assert not (cut / SINGLE).exists()
    one, many = load(whole), load(cut)
    assert all(torch.equal(one[name], many[name]) for name in one)


@pytest.mark.case("LD01")
def test_a_stored_head_does_not_touch_a_tied_embedding(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, tie_word_embeddings=True)
    embedding = load_file(folder / SINGLE)["model.embed_tokens.weight"]
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": torch.full((128, 64), 9.0)}))
    loaded = load_model(ModelConfig(path=str(folder)), CPU)
    assert torch.equal(loaded.model.parameters["embedding.weight"], embedding)
    hidden = torch.randn(3, 64)
    torch.testing.assert_close(loaded.model.compute_logits(hidden), hidden @ embedding.T)


@pytest.mark.case("LD01")
def test_ignoring_a_different_stored_head_is_said(tmp_path: Path, caplog) -> None:
    folder = make_hf_folder(tmp_path, tie_word_embeddings=True)
    embedding = load_file(folder / SINGLE)["model.embed_tokens.weight"]
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert not caplog.records
    rewrite(folder, lambda tensors: tensors["lm_head.weight"].add_(1))
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert "lm_head.weight" in caplog.text
    assert "tie_word_embeddings" in caplog.text


@pytest.mark.case("LD03")
def test_a_missing_untied_head_is_named(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"lm_head.weight is missing.*tie_word_embeddings"):
        load(folder)


@pytest.mark.case("LD13")
@pytest.mark.parametrize("sharded", [True, False])
def test_files_outside_the_index_do_not_exist(tmp_path: Path, sharded: bool) -> None:
    folder = make_hf_folder(tmp_path, shard_bytes=40_000 if sharded else None)
    before = {name: tensor.clone() for name, tensor in load(folder).items()}
    stray = {"model.norm.weight": torch.full((64,), 9.0), "never.asked": torch.zeros(1)}
    for name in ("consolidated.safetensors", "model-00099-of-00099.safetensors", "a.safetensors"):
        save_file(stray, folder / name)
    after = load(folder)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.case("LD13")
def test_a_tensor_that_the_index_assigns_elsewhere_is_not_read(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, shard_bytes=40_000)
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    before = load(folder)["norm.weight"].clone()
    other = next(name for name in set(files.values()) if name != files["model.norm.weight"])
    tensors = load_file(folder / other)
    save_file({**tensors, "model.norm.weight": torch.full((64,), 9.0)}, folder / other)
    assert torch.equal(load(folder)["norm.weight"], before)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"missing 1 tensor: model.layers.1.mlp.up_proj.weight"):
        load(folder)


@pytest.mark.case("LD11")
def test_a_bias_without_a_place_is_no_silent_loss(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    name = "model.layers.0.self_attn.o_proj.bias"
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(64)}))
    with pytest.raises(ModelError, match=f"no place for 1 tensor: {name}"):
        load(folder)


def test_buffers_of_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    load(folder)


def test_a_wrong_shape_is_told_with_both_shapes(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    name = "model.layers.0.self_attn.k_proj.weight"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(16, 64)}))
    with pytest.raises(ModelError, match=rf"{name} has shape \[16, 64\].*asks for \[32, 64\]"):
        load(folder)


def test_a_quantized_tensor_is_refused(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    name = "model.norm.weight"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(64, dtype=torch.int8)}))
    with pytest.raises(ModelError, match=rf"{name} is stored as int8; supported: float32"):
        load(folder)


@pytest.mark.parametrize("keep", [4, 200, 60_000])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    folder = make_hf_folder(tmp_path)
    content = (folder / SINGLE).read_bytes()
    assert len(content) > keep
    (folder / SINGLE).write_bytes(content[:keep])
    for refuse in (load, check):
        with pytest.raises(ModelError, match=r"model.safetensors is not a whole safetensors file"):
            refuse(folder)


def check(folder: Path) -> None:
    config = ModelConfig(path=str(folder))
    check_files(config, read_spec(config))


def test_garbage_is_named(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    (folder / SINGLE).write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(ModelError, match=r"model.safetensors is not a whole safetensors file"):
        load(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, shard_bytes=40_000)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    for refuse in (load, check):
        with pytest.raises(ModelError, match=rf"{shard.name} is missing"):
            refuse(folder)


def test_an_index_that_promises_too_much_is_told(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, shard_bytes=40_000)
    index = json.loads((folder / INDEX).read_text())
    files = index["weight_map"]
    name = "model.norm.weight"
    files[name] = next(file for file in set(files.values()) if file != files[name])
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=rf"cannot read {name}"):
        load(folder)


@pytest.mark.parametrize("value", ['{"weight_map": {"a": "../x.safetensors"}}', "{}", "[", "[]"])
def test_bad_indexes(tmp_path: Path, value: str) -> None:
    folder = write_config(tmp_path)
    (folder / INDEX).write_text(value)
    with pytest.raises(ModelError, match=r"index.json"):
        load(folder)


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    with pytest.raises(ModelError, match=r"has neither model.safetensors nor"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"found only pytorch_model.bin"):
        load(folder)


def test_paths_and_formats_that_disagree(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model.path: .*nowhere does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config.json is missing"):
        load(tmp_path)
    folder = write_config(tmp_path)
    with pytest.raises(ConfigError, match=r"model.format is gguf, so model.path must be a .gguf"):
        load(folder, format="gguf")
    with pytest.raises(ModelError, match=r"neither a folder nor a .gguf file"):
        load(folder / "config.json")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*config.json"):
        load(folder)


def test_dummy_weights_are_seeded(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "Qwen3ForCausalLM")
    first = load(folder, format="dummy", seed=1)
    again = load(folder / "config.json", format="dummy", seed=1)
    other = load(folder, format="dummy", seed=2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert all(tensor.isfinite().all() and tensor.std() > 0 for tensor in first.values())
