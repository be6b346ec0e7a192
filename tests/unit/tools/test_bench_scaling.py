"""tools/bench_scaling.py on a tiny model of random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attention_backends import compiler_problem
from tests.builders import write_config

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_scaling.py"
PARTS = ["linear", "attention", "rows", "head", "host"]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
def test_every_case_has_its_time_or_its_reason(tmp_path: Path) -> None:
    folder, out, bars = write_config(tmp_path / "m"), tmp_path / "s.json", tmp_path / "s.svg"
    kv_of_one = 240 * 2 * 2 * 2 * 16 * 2
    done = run(
        *(folder, "--format", "dummy", "--threads", 1, 2, "--batch", 1, 5),
        *("--context", 20, 200, "--memory", 2 * kv_of_one, "--json", out, "--chart", bars),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" ms\n") == 6
    steps = json.loads(out.read_text())["steps"]
    cases = [(s["threads"], s["batch"], s["context"]) for s in steps]
    assert cases == [(t, b, c) for t in (1, 2) for b in (1, 5) for c in (20, 200)]
    for step in steps:
        if (step["batch"], step["context"]) == (5, 200):
            assert step["left_out"].startswith("KV is ")
            continue
        parts = step["parts_ms"]
        assert list(parts) == PARTS
        assert min(parts.values()) > 0
        assert sum(parts.values()) == pytest.approx(step["eager_ms"], rel=0.01)
        assert step["kind"] == "decode", "it was not replayed from a recording"
        assert step["us_per_token"] == pytest.approx(
            step["step_ms"] * 1e3 / step["batch"], rel=0.01
        )
    assert "KV is" in done.stdout
    assert bars.read_text().count("µs a token") == 3


def test_without_time_nothing_is_measured(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "m")
    done = run(folder, "--format", "dummy", "--batch", 1, "--context", 9, "--seconds", 0)
    assert done.returncode == 1
    assert "no time" in done.stdout


def test_it_refuses_what_is_no_batch() -> None:
    done = run("--batch", 0)
    assert done.returncode == 2
    assert "at least 1" in done.stderr
