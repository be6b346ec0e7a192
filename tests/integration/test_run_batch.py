"""`stepgraph run-batch` as a process that is killed, and goes on."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.serving import write_model

ROOT = Path(__file__).parents[2]


def test_a_batch_that_was_killed_goes_on(tmp_path):
    """Nothing is lost, and nothing is there twice."""
    model = write_model(tmp_path / "model")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
    lines = [{"custom_id": f"r{i}", "url": "/v1/completions", "body": body} for i in range(24)]
    lines.append({"custom_id": "bad", "url": "/v1/completions", "body": {"prompt": ""}})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [
        *(sys.executable, "-m", "runtime", "run-batch", str(source), str(target)),
        *("--model", str(model), "--set", "model.format=dummy", "--set", "engine.threads=1"),
        *("--set", "scheduler.max_num_seqs=2", "--set", "cache.num_blocks=300"),
        *("--set", "model.max_model_len=300", "--set", "cache.block_size=4"),
    ]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (target.exists() and target.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    first.kill()
    first.wait()
    had = target.read_bytes().count(b"\n")
    assert 0 < had < len(lines)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 1, second.stderr
    assert f"{had} of 25 requests were answered before" in second.stderr
    rows = [json.loads(row) for row in target.read_text().splitlines()]
    assert sorted(row["custom_id"] for row in rows) == sorted(line["custom_id"] for line in lines)
    status = {row["custom_id"]: row["response"]["status_code"] for row in rows}
    assert status.pop("bad") == 400
    assert set(status.values()) == {200}
