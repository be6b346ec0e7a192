import json
import subprocess
import sys
from pathlib import Path

import pytest

from attention_backends import compiler_problem

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_attention.py"
SMALL = ("--layers", 1, "--repeats", 1, "--heads", 4, 2, "--head-dim", 32)


def run(*args):
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
def test_it_writes_the_medians_of_the_workloads_asked_for(tmp_path):
    out = tmp_path / "attention.json"
    done = run("decode", "shared-prefix", *SMALL, "--json", out)
    assert done.returncode == 0, done.stderr
    assert "twin ms" in done.stdout
    data = json.loads(out.read_text())
    assert data["threads"] == 1
    assert data["read_gb_per_s"] > 0
    assert list(data["workloads"]) == ["decode", "shared-prefix"]
    names = ["native_ms", "gflop_per_s", "kv_gb_per_s", "twin_ms"]
    for found in data["workloads"].values():
        assert list(found) == names
        assert all(0 < value < 1e5 for value in found.values())
    # 4 * head_dim a query head for each of 32 requests' 84 .. 115 keys
    decode = data["workloads"]["decode"]
    gflop = decode["gflop_per_s"] * decode["native_ms"] / 1e3
    assert gflop == pytest.approx(4e-9 * 32 * 4 * sum(range(84, 116)))


@pytest.mark.parametrize(
    ("args", "message"), [(["prefil"], "'prefil' is not one of"), (["--layers", 0], "at least 1")]
)
def test_it_refuses_what_it_does_not_know(args, message):
    done = run(*args)
    assert done.returncode == 2
    assert message in done.stderr
