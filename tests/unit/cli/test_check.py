"""`stepgraph check`: the verdict and the exit status are those that `generate` would give."""

import json
import re

import pytest
import torch

import attention_backends
from attention_backends import Support, torch_paged
from runtime import runner
from runtime.front import early
from runtime.runner import kv_memory
from tests.builders import make_gguf, make_hf_folder, write_config
from tests.unit.text.vocabularies import byte_level_backend, save_folder

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 320,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
WEIGHT_BYTES = 4 * (320 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64))
KV_BYTES = 4 * 2 * 2 * 2 * 16
"""of a token"""


@pytest.fixture
def check(call, tmp_path):
    """Check a tiny model of random weights, with flags."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def run(*sets):
        flags = [flag for text in ("engine.device=cpu", *sets) for flag in ("--set", text)]
        return call("check", "--model", tmp_path, "--set", "model.format=dummy", *flags)

    return run


def test_ready(check, tmp_path):
    model = tmp_path
    status, out, err = check("cache.num_blocks=20", "cache.block_size=16")
    assert status == 0
    assert err == (
        f"stepgraph: {model} holds no tokenizer: only token ids can be served; supported: a folder "
        "with tokenizer.json, tokenizer.model, tekken.json, or vocab.json and merges.txt; or a "
        ".gguf file that holds a tokenizer\n"
    )
    assert out.endswith("verdict: ready\n")
    assert f"{WEIGHT_BYTES:,} bytes" in out
    assert f"{KV_BYTES:,} bytes per token" in out
    assert f"{(20 + 2) * 16 * KV_BYTES:,} bytes" in out
    assert "20 usable of 16 tokens" in out
    assert "128 tokens" in out
    assert "LlamaForCausalLM, float32" in out
    assert "none: only token ids can be served" in out
    for title in ("machine", "versions", "threads", "model", "graph modes", "KV pool"):
        assert f"{title}\n" in out


def test_threads_and_cores(check):
    assert re.search(r"of a step +3\n +cores +not bound\n", check("engine.threads=3")[1])
    status, out, _ = check("engine.bind_cores=60000")
    assert status == 2
    assert "verdict: cannot run: engine.bind_cores: this process may not run on 60000;" in out


def test_every_backend_has_its_answer(check):
    from attention_backends import backend_names

    _, out, _ = check()
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if line.startswith("  "))
    for name in backend_names():
        assert rows[name].startswith(("able: ", "unable: "))
    assert rows["torch_paged"].startswith("able: ")


@pytest.mark.parametrize(
    ("sets", "status", "message"),
    [
        (["attention.backend=torch_pagd"], 2, "did you mean torch_paged?"),
        (["graphs.decode=egaer"], 2, "did you mean eager?"),
        (["graphs.decode=full", "engine.device=cpu"], 4, "graphs.decode: full cannot be used"),
        (["cache.memory=1KiB"], 2, "cache.memory: "),
        (
            ["cache.num_blocks=2", "cache.block_size=4", "model.max_model_len=100"],
            2,
            "must be <= 9",
        ),
        (["model.max_model_len=129"], 2, "model.max_model_len: "),
        (["cache.num_blocks=100000000", "cache.block_size=16"], 2, "cache.num_blocks: "),
        (["scheduler.max_num_seqs=yes"], 2, "scheduler.max_num_seqs: must be an integer"),
    ],
)
def test_the_reason_why_not(check, sets, status, message):
    found, out, _ = check(*sets)
    verdict = out[out.index("verdict: ") :]
    assert verdict.startswith("verdict: cannot run: ")
    assert message in verdict
    assert found == status


@pytest.mark.parametrize("command", ["check", "generate"])
def test_cuda_where_there_is_none(call, tmp_path, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    argv = ["--model", tmp_path, "--set", "model.format=dummy", "--set", "engine.device=cuda"]
    status, out, err = call(command, *argv, *(["--prompt", "x"] if command == "generate" else []))
    assert status == 2
    said = out if command == "check" else err
    assert "engine.device: cuda was asked for, but " in said
    assert said.endswith("; allowed here: auto, cpu\n")
    assert "Traceback" not in err


class TestWeights:
    """None is loaded, and the pool gets what they will leave."""

    @pytest.fixture
    def free(self, monkeypatch):
        def free(num_bytes):
            monkeypatch.setattr(kv_memory, "free_memory_bytes", lambda device: num_bytes)

        return free

    @pytest.fixture
    def on_a_gpu(self, monkeypatch):
        """One that is seen, but on which nothing is done."""
        monkeypatch.setattr(early, "choose_device", lambda wanted: torch.device("cuda", 0))
        choice = attention_backends.Choice(torch_paged.Backend, Support(True), 16, {})
        monkeypatch.setattr(runner, "choose_backends", lambda *args: choice)

    def pool(self, out):
        [line] = [line for line in out.splitlines() if line.strip().startswith("blocks ")]
        return int(line.split()[1])

    def test_they_are_taken_off(self, check, free):
        block = 16 * KV_BYTES
        free(WEIGHT_BYTES + 2 * 10 * block)
        status, out, _ = check("cache.block_size=16", "model.max_model_len=32")
        assert status == 0
        assert self.pool(out) == 10 - 2

    def test_they_alone_are_too_much(self, check, free):
        free(1000)
        status, out, _ = check()
        assert status == 3
        assert re.search(
            r"verdict: cannot run: the weights take .* and 1000 B are free on cpu", out
        )
        assert "model.quantization" in out

    @pytest.mark.usefixtures("on_a_gpu")
    def test_on_a_gpu_the_answer_is_a_bound(self, check, free):
        block = 16 * KV_BYTES
        free(WEIGHT_BYTES + 100 * block)
        status, out, _ = check("cache.block_size=16", "model.max_model_len=32")
        assert status == 0
        assert "KV pool (at most: what runs beside it is measured at the start)\n" in out
        assert self.pool(out) == 95 - 2


class TestFiles:
    """What stands in the files, as far as it is known without reading the weights."""

    @pytest.fixture
    def gguf(self, tmp_path):
        return make_gguf(tmp_path / "t.gguf", make_hf_folder(tmp_path / "hf"), "llama", "F32")

    @pytest.fixture
    def verdict(self, call, tmp_path):
        """verdict(model, **sets) of a check: (exit status, what follows "verdict: ")"""
        tokenizer = save_folder(
            tmp_path / "tokenizer", byte_level_backend(), chat_template="{{ messages }}"
        )

        def run(model, **changes):
            keys = {"tokenizer": tokenizer, "cache_dir": tmp_path / "cache", **changes}
            flags = [flag for k, v in keys.items() for flag in ("--set", f"model.{k}={v}")]
            status, out, _ = call("check", "--model", model, *flags, "--set", "engine.device=cpu")
            facts, _, said = out.partition("verdict: ")
            return status, said, facts

        return run

    def test_ready(self, gguf, verdict):
        status, said, facts = verdict(gguf)
        assert (status, said) == (0, "ready\n")
        assert "\n  chat template      yes\n" in facts

    def test_data_cut_short(self, gguf, verdict):
        gguf.write_bytes(gguf.read_bytes()[:-1])
        status, said, _ = verdict(gguf)
        assert status == 3
        assert "t.gguf is cut short" in said

    def test_no_place_for_the_conversion(self, gguf, verdict, tmp_path):
        (tmp_path / "file").write_text("")
        status, said, _ = verdict(gguf, cache_dir=tmp_path / "file" / "cache")
        assert status == 2
        assert "cannot write the conversion cache" in said

    def test_weights_that_are_not_there(self, verdict, tmp_path):
        status, said, _ = verdict(write_config(tmp_path / "model"))
        assert status == 3
        assert "has neither model.safetensors nor" in said

    def test_a_tokenizer_that_is_not_there(self, gguf, verdict, tmp_path):
        status, said, _ = verdict(gguf, tokenizer=tmp_path / "gone")
        assert status == 3
        assert f"model.tokenizer: {tmp_path / 'gone'} does not exist" in said


def test_without_a_model(call):
    status, out, _ = call("check")
    assert status == 0
    assert "attention backends, for a typical model" in out
    assert "torch_paged" in out
    assert out.endswith("verdict: no model was given; add --config F.yaml or --model PATH\n")


def test_a_model_from_the_environment_is_checked(call, monkeypatch):
    monkeypatch.setenv("STEPGRAPH_MODEL__PATH", "gone")
    status, out, _ = call("check")
    assert status == 3
    assert "gone does not exist" in out
