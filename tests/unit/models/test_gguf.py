"""GGUF files: what the header amounts to, what the weights become, and the conversion cache."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.machine.disk_cache import cache_folder_of
from runtime.models import _gguf_convert, check_files, load_model, read_spec
from runtime.models._gguf_header import TensorInfo, read_header
from tests.builders import make_gguf, make_hf_folder

CPU = torch.device("cpu")


def config_of(path: Path, **changes: Any) -> ModelConfig:
    changes.setdefault("cache_dir", str(path.parent / "cache"))
    return ModelConfig(path=str(path), **changes)


def parameters_of(path: Path, **changes: Any) -> dict[str, torch.Tensor]:
    return load_model(config_of(path, **changes), CPU).model.parameters


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_gguf(tmp_path / "t.gguf", make_hf_folder(tmp_path / "hf"), "llama", "F32")


@pytest.mark.parametrize(
    ("gguf_name", "architecture", "changes"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("llama", "LlamaForCausalLM", {"attention_bias": True}),
        ("llama", "MistralForCausalLM", {"sliding_window": 8, "head_dim": 32}),
        ("qwen2", "Qwen2ForCausalLM", {}),
        ("qwen3", "Qwen3ForCausalLM", {"head_dim": 32}),
    ],
)
def test_a_lossless_gguf_is_the_folder_it_came_from(
    tmp_path: Path, gguf_name: str, architecture: str, changes: dict[str, Any]
) -> None:
    folder = make_hf_folder(tmp_path / "hf", architecture, **changes)
    window = changes.get("sliding_window")
    metadata = {"attention__sliding_window": window} if window else {}
    path = make_gguf(tmp_path / "m.gguf", folder, gguf_name, "F32", **metadata)
    theirs = load_model(ModelConfig(path=str(folder)), CPU)
    ours = load_model(config_of(path, dtype="float32"), CPU)
    assert ours.spec.architecture == architecture
    assert ours.attention_shapes == theirs.attention_shapes
    assert ours.spec.eos_token_ids == (2,)
    assert ours.spec.rms_norm_eps == pytest.approx(theirs.spec.rms_norm_eps, rel=1e-6)
    expected, actual = theirs.model.parameters, ours.model.parameters
    assert actual.keys() == expected.keys()
    for name in expected:
        assert torch.equal(actual[name], expected[name]), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_quantized_types_come_back_near(tmp_path: Path, kind: str) -> None:
    folder = make_hf_folder(tmp_path / "hf")
    path = make_gguf(tmp_path / "m.gguf", folder, "llama", kind)
    ours = parameters_of(path, dtype="float32")
    theirs = load_model(ModelConfig(path=str(folder)), CPU).model.parameters
    bits = {"F16": 11, "BF16": 8}.get(kind) or int(kind[1])
    for name, expected in theirs.items():
        error = (ours[name] - expected).abs().max()
        assert error <= expected.abs().max() * 2.0 ** (1 - bits), name


@pytest.mark.parametrize(
    "kind",
    ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ2_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"],
)
def test_every_type_of_the_library_is_cut_from_the_right_bytes(kind: str) -> None:
    """Two rows of random blocks, at an offset, against the library on the same bytes."""
    type_id = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[type_id]
    raw = np.random.default_rng(0).integers(0, 120, (2, 3 * block_bytes), dtype=np.uint8)
    info = TensorInfo((2, 3 * block), int(type_id), 7)
    data = np.concatenate([np.zeros(7, np.uint8), raw.reshape(-1)])
    expected = gguf.dequantize(raw, type_id)
    actual = _gguf_convert._dequantized(data, info)
    assert actual.shape == info.shape
    np.testing.assert_array_equal(actual, expected)
    _gguf_convert._check_type("t", info, Path("m.gguf"))


def test_a_type_that_the_library_cannot_read_is_named() -> None:
    info = TensorInfo((2, 32), int(gguf.GGMLQuantizationType.Q8_1), 0)
    with pytest.raises(ModelError, match=r"m.gguf: the tensor t is stored in type 9, which"):
        _gguf_convert._check_type("t", info, Path("m.gguf"))


def test_frequency_factors_stand_for_llama3_rope(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = make_hf_folder(tmp_path / "hf", rope_parameters=rope)
    scaled = load_model(ModelConfig(path=str(folder)), CPU).model.inverse_frequencies
    plain = 500.0 ** -(torch.arange(0, 16, 2) / 16)
    path = make_gguf(
        tmp_path / "m.gguf", folder, "llama", "F32", _tensor={"rope_freqs.weight": plain / scaled}
    )
    model = load_model(config_of(path, dtype="float32"), CPU).model
    torch.testing.assert_close(model.inverse_frequencies, scaled)
    assert not torch.allclose(scaled, plain)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"rope__scaling__type": "none"}, ("default", 1.0, 0)),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, ("linear", 4.0, 0)),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 64,
            },
            ("yarn", 4.0, 64),
        ),
    ],
)
def test_rope_scaling_keys(
    tmp_path: Path, metadata: dict[str, Any], expected: tuple[str, float, int]
) -> None:
    folder = make_hf_folder(tmp_path / "hf")
    path = make_gguf(tmp_path / "m.gguf", folder, "llama", "F32", **metadata)
    rope = read_spec(config_of(path)).rope
    assert (rope.type, rope.factor, rope.original_max_position) == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"_general__architecture": "gemma"}, "'gemma'; supported: llama, qwen2, qwen3"),
        ({"_split__count": 2}, "one part of a split GGUF"),
        ({"expert_count": 8}, "mixtures of experts"),
        ({"block_count": ...}, "the key llama.block_count is missing"),
        ({"embedding_length": 0}, "llama.embedding_length must be an integer above 0"),
        ({"rope__dimension_count": 8}, "rope.dimension_count 8 differs from the head size 16"),
        ({"rope__scaling__type": "longrope"}, "unsupported rope type 'longrope'"),
        ({"rope__scaling__type": "yarn", "rope__scaling__attn_factor": 0.5}, "attn_factor is not"),
        ({"_tensor": {"blk.0.odd.weight": torch.zeros(32)}}, "no place for the tensor blk.0.odd"),
        ({"block_count": 3}, "missing 9 tensors: model.layers.2"),
        ({"feed_forward_length": 64}, r"gate_proj.weight has shape \[96, 64\].*\[64, 64\]"),
    ],
)
def test_refused_files(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    folder = make_hf_folder(tmp_path / "hf")
    path = make_gguf(tmp_path / "m.gguf", folder, "llama", "F32", **metadata)
    with pytest.raises(ModelError, match=message):
        load_model(config_of(path), CPU)


def test_eos_and_end_of_turn_ids_count(tmp_path: Path) -> None:
    keys = {"_tokenizer__ggml__eot_token_id": 5, "_tokenizer__ggml__eom_token_id": 2}
    path = make_gguf(tmp_path / "m.gguf", make_hf_folder(tmp_path / "hf"), "llama", "F32", **keys)
    assert read_spec(config_of(path)).eos_token_ids == (2, 5)


@pytest.mark.parametrize("version", [1, 4])
def test_versions(tiny: Path, version: int) -> None:
    content = bytearray(tiny.read_bytes())
    content[4:8] = struct.pack("<I", version)
    tiny.write_bytes(content)
    with pytest.raises(ModelError, match=f"GGUF version {version} is not supported"):
        read_spec(config_of(tiny))


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.003, 0.02, 0.5, 0.999])
def test_truncated_at_any_place(tiny: Path, share: float) -> None:
    content = tiny.read_bytes()
    tiny.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError, match=r"t.gguf"):
        load_model(config_of(tiny), CPU)
    assert not list(tiny.parent.glob("cache/**/*.safetensors"))


@pytest.mark.parametrize("missing_bytes", [1, 20_000])
def test_truncated_data_is_seen_without_loading(tiny: Path, missing_bytes: int) -> None:
    check(tiny)
    tiny.write_bytes(tiny.read_bytes()[:-missing_bytes])
    with pytest.raises(ModelError, match=r"t.gguf is cut short: the tensor .* ends at byte"):
        check(tiny)


def check(path: Path, **changes: Any) -> None:
    config = config_of(path, **changes)
    check_files(config, read_spec(config))


def test_not_a_gguf_file(tiny: Path) -> None:
    tiny.write_bytes(b"<html>" * 1000)
    with pytest.raises(ModelError, match="does not begin with GGUF"):
        read_spec(config_of(tiny))


def test_damaged_lengths_are_no_endless_loop(tiny: Path) -> None:
    content = bytearray(tiny.read_bytes())
    content[24:32] = struct.pack("<Q", 2**62)
    tiny.write_bytes(content)
    with pytest.raises(ModelError, match="damaged or cut short"):
        read_header(tiny)


def test_auto_is_bfloat16(tiny: Path) -> None:
    assert read_spec(config_of(tiny)).dtype == "bfloat16"
    assert {p.dtype for p in parameters_of(tiny).values()} == {torch.bfloat16}


def test_the_second_load_does_not_convert(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = parameters_of(tiny)
    moved = tiny.rename(tiny.with_name("renamed.gguf"))
    monkeypatch.setattr(_gguf_convert, "_write", lambda *_: pytest.fail("converted again"))
    second = parameters_of(moved)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_type_is_another_conversion(tiny: Path) -> None:
    parameters_of(tiny, dtype="bfloat16")
    exact = parameters_of(tiny, dtype="float32")
    assert exact["norm.weight"].dtype == torch.float32
    assert not torch.equal(exact["norm.weight"], exact["norm.weight"].bfloat16().float())


def test_changed_content_is_another_conversion(tiny: Path) -> None:
    before = parameters_of(tiny, dtype="float32")["norm.weight"].clone()
    info = read_header(tiny).tensors["output_norm.weight"]
    content = bytearray(tiny.read_bytes())
    content[info.offset : info.offset + 4] = struct.pack("<f", 5.0)
    tiny.write_bytes(content)
    after = parameters_of(tiny, dtype="float32")["norm.weight"]
    assert after[0] == 5.0
    assert torch.equal(after[1:], before[1:])


def damage_truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def damage_unlink(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damage_config(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("64", "65"))


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def damage_empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_unlink, damage_config, damage_manifest, damage_empty]
)
def test_a_damaged_conversion_is_made_anew(tiny: Path, damage) -> None:
    first = parameters_of(tiny)
    (folder,) = cache_folder_of(tiny, config_of(tiny)).glob("weights-*[0-9]")
    damage(folder)
    second = parameters_of(tiny)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_large_models_are_written_in_shards(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parameters_of(tiny)
    monkeypatch.setattr(_gguf_convert, "SHARD_BYTES", 20_000)
    config = config_of(tiny, cache_dir=str(tiny.parent / "other"))
    cut = load_model(config, CPU).model.parameters
    assert len(list(tiny.parent.glob("other/**/model-*.safetensors"))) > 2
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_conversion_is_a_folder_that_others_can_read(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    ours = parameters_of(tiny, dtype="float32")
    (folder,) = cache_folder_of(tiny, config_of(tiny)).glob("weights-*32")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model.lm_head.weight, ours["head.weight"])
    assert model.dtype == torch.float32
    assert load_file(folder / "model.safetensors").keys() == model.state_dict().keys()


LOAD = """
import logging, resource, sys, torch
from runtime.config.sections import ModelConfig
from runtime.models import load_model
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
path, cache, limit = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
torch.set_num_threads(1)
try:
    loaded = load_model(ModelConfig(path=path, cache_dir=cache), torch.device("cpu"))
    print("sum", sum(p.double().sum().item() for p in loaded.model.parameters.values()))
except Exception as error:
    print(type(error).__name__, error)
"""


def start_load(path: Path, cache: Path, limit: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, str(path), str(cache), str(limit)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_convert_once(tiny: Path) -> None:
    cache = tiny.parent / "shared"
    processes = [start_load(tiny, cache) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert sum("converting" in output for output in outputs) == 1
    sums = {line for output in outputs for line in output.splitlines() if line.startswith("sum")}
    assert len(sums) == 1


def test_a_disk_that_fills_up_while_converting(tiny: Path) -> None:
    """A file-size limit of the process stands for the full disk: writes fail half-way."""
    cache = tiny.parent / "full"
    output = start_load(tiny, cache, limit=20_000).communicate(timeout=120)[0]
    assert "ModelError the disk filled up while converting" in output
    assert "model.cache_dir" in output
    assert "STEPGRAPH_CACHE_DIR" in output
    assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert parameters_of(tiny, cache_dir=str(cache))["norm.weight"].isfinite().all()


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 2 GiB"), OSError(errno.ENOMEM, "no memory")]
)
def test_memory_that_runs_out_while_converting(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(_gguf_convert, "_dequantized", refuse)
        with pytest.raises(ModelError, match=r"^out of memory while converting .*t\.gguf.* host"):
            load_model(config_of(tiny), CPU)
    assert parameters_of(tiny)["norm.weight"].isfinite().all()


def test_too_little_space_is_told_before_converting(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tiny)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(_gguf_convert, "_write", lambda *_: pytest.fail("converted"))
    with pytest.raises(ModelError, match=r"not enough disk space.*model.cache_dir"):
        parameters_of(tiny)


def test_a_cache_that_cannot_be_written(tiny: Path) -> None:
    blocker = tiny.parent / "file"
    blocker.write_text("")
    with pytest.raises(ConfigError, match=r"model.cache_dir.*STEPGRAPH_CACHE_DIR"):
        parameters_of(tiny, cache_dir=str(blocker / "cache"))


def test_a_place_for_the_conversion_is_looked_for_without_converting(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tiny.parent / "file"
    blocker.write_text("")
    with pytest.raises(ConfigError, match=r"cannot write the conversion cache .*model.cache_dir"):
        check(tiny, cache_dir=str(blocker / "cache"))
    check(tiny)
    assert not (tiny.parent / "cache").exists()
    usage = shutil.disk_usage(tiny)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"not enough disk space.*model.cache_dir"):
        check(tiny)
    monkeypatch.undo()
    parameters_of(tiny)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check(tiny)  # the conversion is there already


def test_a_read_only_cache_still_serves_what_it_has(tiny: Path) -> None:
    first = parameters_of(tiny)
    folder = cache_folder_of(tiny, config_of(tiny))
    folder.chmod(0o555)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this user writes anywhere")
        assert torch.equal(parameters_of(tiny)["norm.weight"], first["norm.weight"])
        with pytest.raises(ConfigError, match=r"model.cache_dir"):
            parameters_of(tiny, dtype="float16")
    finally:
        folder.chmod(0o755)


def test_the_environment_names_the_cache(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPGRAPH_CACHE_DIR", str(tiny.parent / "env"))
    parameters_of(tiny, cache_dir=None)
    assert list((tiny.parent / "env").rglob("model.safetensors"))
