"""tools/bench_startup.py on a tiny model, and without a compiler, so that its starts are cheap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import make_hf_folder
from tests.unit.text.vocabularies import byte_level_backend, save_folder

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_startup.py"


def run(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_phases_add_up(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "startup.json"
    save_folder(folder, byte_level_backend())
    make_hf_folder(folder, vocab_size=320)
    done = run(
        *(folder, "--first-runs", 1, "--runs", 2, "--json", out),
        *("--set", "engine.device=cpu", "--set", "cache.num_blocks=40"),
        CXX="no-such-compiler",
    )
    assert done.returncode == 0, done.stderr
    assert "first token at" in done.stdout
    assert done.stderr.count("warm: ") == 2
    found = json.loads(out.read_text())
    assert {kind: of["runs"] for kind, of in found.items()} == {
        "first": 1,
        "converted": 1,
        "warm": 2,
    }
    for of in found.values():
        phases = of["phases_s"]
        assert list(phases)[:3] == ["interpreter", "config", "imports"]
        assert sum(phases.values()) == pytest.approx(of["wall_s"], rel=0.01)
        for name in ("interpreter", "imports", "tokenizer", "reading", "runner", "first token"):
            assert phases[name] > 0
        assert of["cpu_s"] > 0.1
    tokenizers = [of["phases_s"]["tokenizer"] for of in found.values()]
    assert tokenizers[0] > 3 * tokenizers[2], "the first start alone converts it"


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    done = run(tmp_path / "none", "--runs", 1)
    assert done.returncode == 1
    assert "does not exist" in done.stderr


def test_it_refuses_no_runs() -> None:
    done = run("--runs", 0)
    assert done.returncode == 2
    assert "at least 1" in done.stderr
