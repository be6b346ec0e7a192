import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_step.py"


def run(*args):
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)], capture_output=True, text=True, timeout=120
    )


def test_it_writes_the_medians_of_every_part(tmp_path):
    out = tmp_path / "step.json"
    done = run("--running", 1, 70, "--steps", 3, "--json", out)
    assert done.returncode == 0, done.stderr
    assert "schedule" in done.stdout
    data = json.loads(out.read_text())
    assert list(data) == ["decode", "mixed"]
    for by_count in data.values():
        assert list(by_count) == ["1", "70"]
        for times in by_count.values():
            assert list(times) == ["schedule_ms", "build_ms", "update_ms"]
            assert all(0 < value < 1000 for value in times.values())


def test_it_refuses_no_steps():
    done = run("--steps", 0)
    assert done.returncode == 2
    assert "at least 1" in done.stderr
