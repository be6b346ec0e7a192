"""`stepgraph generate` as a process, over the real engine and a tiny model of random weights."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders import write_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tmp_path):
    model = write_config(tmp_path / "model")
    return [
        *(sys.executable, "-m", "runtime", "generate", "--model", str(model)),
        *("--set", "model.format=dummy", "--set", "engine.device=cpu", "--set", "engine.threads=1"),
        *("--set", "cache.num_blocks=64", "--set", "cache.block_size=4", "--output"),
        str(tmp_path / "out.jsonl"),
    ]


@pytest.fixture
def env():
    return {k: v for k, v in os.environ.items() if not k.startswith("STEPGRAPH_")}


def lines_of(tmp_path):
    text = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    return {line["index"]: line for line in map(json.loads, text.splitlines())}


def test_token_ids_in_token_ids_out(command, env, tmp_path):
    source = tmp_path / "in.jsonl"
    prompts = [[5, 6, 7], [9] * 30, [5, 6, 7], [], [10**6], [1] * 300]
    fields = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    source.write_text("".join(json.dumps({"token_ids": p, **fields}) + "\n" for p in prompts))
    done = subprocess.run(
        [*command, "--input", str(source)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    lines = lines_of(tmp_path)
    assert sorted(lines) == list(range(6))
    for index in range(3):
        assert lines[index]["finish_reason"] == "length"
        assert len(lines[index]["token_ids"]) == lines[index]["num_output_tokens"] == 6
        assert lines[index]["num_prompt_tokens"] == len(prompts[index])
    assert lines[0]["token_ids"] == lines[2]["token_ids"]
    for index in range(3, 6):
        assert lines[index]["finish_reason"] == "error"
        assert lines[index]["error"]
    assert "6 (3 error, 3 length)" in done.stderr


def test_an_interrupt_keeps_what_was_done(command, env, tmp_path):
    source = tmp_path / "in.jsonl"
    short = {"token_ids": [5, 6], "max_tokens": 1}
    endless = {"token_ids": [7, 8], "max_tokens": 250, "ignore_eos": True}
    source.write_text("".join(json.dumps(r) + "\n" for r in [short, *[endless] * 400]))
    process = subprocess.Popen(
        [*command, "--input", str(source), "--set", "scheduler.max_num_seqs=1"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    out = tmp_path / "out.jsonl"
    deadline = time.monotonic() + 120
    while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    lines = lines_of(tmp_path)
    assert sorted(lines) == list(range(401))
    assert lines[0]["finish_reason"] == "length"
    assert lines[400]["finish_reason"] == "abort"
    assert lines[400]["token_ids"] == []
