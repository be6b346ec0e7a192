"""tools/gpu_check.py, run end to end on the CPU with small sizes and emulated graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime import ops
from runtime.config import ModelConfig
from runtime.models import read_spec, weight_bytes
from tools import gpu_check
from tools._gpu_check import op_numerics, sections, speed, step_times, subject
from tools._gpu_check.attention_batches import attention_in_float64, make_batch
from tools._gpu_check.batches import Pool, Schedule
from tools._gpu_check.ceilings import Ceilings
from tools._gpu_check.floors import floor_ms, step_bytes, step_ops
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import QWEN3_8B, SHORT, TINY, spec_of, tiny
from tools._steps import Part

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
REFUSE = """
import sys, importlib.abc
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, ".")
sys.argv = ["gpu_check.py", *{arguments}]
from tools import gpu_check
sys.exit(gpu_check.main())
"""
NOT_NEEDED = {
    *("pydantic", "ruamel", "transformers", "tokenizers", "safetensors", "gguf", "xxhash", "rich"),
    *("psutil", "llguidance"),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def check(tmp_path: Path, *arguments: str) -> tuple[int, dict]:
    """Exit code and JSON."""
    path = tmp_path / "lines.json"
    code = gpu_check.main(["--device", "cpu", "--tiny", "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


def test_every_section_on_the_cpu(tmp_path, capsys):
    code, found = check(tmp_path, "--seconds", "60")
    assert code == 0, capsys.readouterr().out
    assert found["is_whole"]
    assert found["counts"]["FAIL"] == 0
    assert found["about"]["versions"]["torch"] == torch.__version__
    verdicts = Counter((line["section"], line["verdict"]) for line in found["lines"])
    for section, least in {
        "ops": 31,
        "attention": 20,
        "exact": 6,
        "ceilings": 2,
        "speed": 12,
        "host": 1,
    }.items():
        assert verdicts[section, "ok"] >= least
    modes = [line for line in found["lines"] if "decode=emulated" in line["name"]]
    schedule, buckets = (line["values"] for line in modes)
    assert min(schedule["decode"], schedule["segmented"]) >= 10
    assert (buckets["buckets"], buckets["kv_classes"]) == (12, [1024, 1100])
    assert buckets["most_keys"] == 1099
    decode = [line for line in found["lines"] if line["name"].endswith("decode 4 x 40")]
    assert decode[0]["values"]["kind"] == "decode"
    assert decode[0]["values"]["floor_ms"] > 0
    mixed = [line for line in found["lines"] if line["name"].endswith("mixed 32")]
    assert mixed[0]["values"]["kind"] == "segmented"
    assert "0 FAIL" in capsys.readouterr().out


def run_aside(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_torch_triton_and_numpy_are_enough(tmp_path):
    arguments = ["--device", "cpu", "--tiny", "--json", str(tmp_path / "x")]
    done = run_aside(REFUSE.format(names=NOT_NEEDED, arguments=arguments))
    assert done.returncode == 0, done.stdout
    assert "ahead" in done.stdout


@pytest.mark.parametrize(
    ("names", "device", "said"),
    [
        ({"numpy"}, "cpu", "needs torch, numpy; not installed here: numpy (pip install numpy)"),
        (
            {"torch", "triton"},
            "cuda",
            "needs torch, numpy, triton; not installed here: torch triton "
            "(pip install torch triton)",
        ),
    ],
)
def test_a_missing_package_is_one_line(names, device, said):
    done = run_aside(REFUSE.format(names=names, arguments=["--device", device, "--tiny"]))
    assert (done.returncode, done.stdout) == (2, f"gpu_check: {said}\n")


def test_imports_count_against_the_time_limit(tmp_path):
    """Two seconds of them leave nothing of one."""
    path = tmp_path / "lines.json"
    arguments = ["--device", "cpu", "--tiny", "--seconds", "1", "--json", str(path)]
    slow = REFUSE.replace("raise ModuleNotFoundError(name)", "time.sleep(2)")
    slow = slow.replace('name.split(".")[0]', "name")
    done = run_aside("import time" + slow.format(names={"torch"}, arguments=arguments))
    assert done.returncode == 0, done.stdout
    lines = json.loads(path.read_text())["lines"]
    assert {line["reason"] for line in lines} == {"time limit"}
    assert {line["section"] for line in lines} == set(gpu_check.SHARES)


HANG = """
import sys, time
sys.path.insert(0, ".")
from tools import gpu_check
from tools._gpu_check import sections

def hang(scale, report, deadline):
    report.add("ops", "the first", "ok", value=1.5)
    time.sleep(60)

gpu_check.GRACE_S = 1.0
sections.SECTIONS["ops"] = hang
gpu_check.main({arguments})
"""


def test_a_section_that_hangs_is_ended_and_its_lines_are_kept(tmp_path):
    path = tmp_path / "lines.json"
    limit = ["--seconds", "2", "--sections", "ops", "--json", str(path)]
    done = run_aside(HANG.format(arguments=["--device", "cpu", "--tiny", *limit]))
    assert done.returncode == gpu_check.OUT_OF_TIME, done.stdout
    assert "the time limit struck inside a section" in done.stdout
    found = json.loads(path.read_text())
    assert not found["is_whole"]
    assert [line["name"] for line in found["lines"]] == ["the first"]


def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--sections", "ops,opps"]])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SystemExit):
        gpu_check.main(arguments)


def test_at_the_time_limit_the_rest_is_skipped(tmp_path):
    code, found = check(tmp_path, "--seconds", "0", "--sections", "ops,attention,exact")
    assert code == 0
    assert {line["reason"] for line in found["lines"]} == {"time limit"}
    assert len(found["lines"]) > 30


def test_a_wrong_op_fails(tmp_path, monkeypatch):
    right = ops.rms_norm
    monkeypatch.setattr(ops, "rms_norm", lambda x, w, eps: right(x, w, eps) * 1.02)
    code, found = check(tmp_path, "--sections", "ops")
    failed = [line["name"] for line in found["lines"] if line["verdict"] == "FAIL"]
    assert code == 1
    assert failed == ["rms_norm float32", "rms_norm float16", "rms_norm bfloat16"]


def test_nan_never_passes():
    reference = torch.ones(3, dtype=torch.float64)
    assert op_numerics.error_of(torch.tensor([1.0, torch.nan, 1.0]), reference) == float("inf")
    assert op_numerics.error_of(torch.tensor([1.0, 1.0, 1.0]), reference) == 0


def test_a_section_that_breaks_is_a_fail_and_the_next_one_runs(tmp_path, monkeypatch):
    def broken(scale, report, deadline):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(sections.SECTIONS, "attention", broken)
    code, found = check(tmp_path, "--sections", "attention,ops")
    assert code == 1
    assert "no such kernel" in found["lines"][0]["reason"]
    assert found["counts"]["ok"] == 31


def test_replays_that_differ_fail(tmp_path, monkeypatch):
    """A model whose second runner's logits are off, as with a stale buffer."""
    give = subject.Recorder.compute_logits
    made = []

    def off(self, hidden):
        if self not in made:
            made.append(self)
        logits = give(self, hidden)
        self.logits[-1] = logits * (1.0 if made.index(self) == 0 else 1.001)
        return logits

    monkeypatch.setattr(subject.Recorder, "compute_logits", off)
    code, found = check(tmp_path, "--sections", "exact")
    failed = [line["name"] for line in found["lines"] if line["verdict"] == "FAIL"]
    assert code == 1
    assert len(failed) == 2
    assert not any("every bucket" in name for name in failed)


@pytest.mark.parametrize(
    ("estimate", "verdict", "reason"),
    [
        (1 << 40, "ok", ""),
        (1, "FAIL", "estimated under 0.8 of what it took"),
        (None, "skipped", "no estimate for this pair"),
    ],
)
def test_a_capture_is_ok_only_beside_an_estimate(monkeypatch, estimate, verdict, reason):
    monkeypatch.setattr(speed._Check, "_estimate", lambda self, config: estimate)
    report = Report(None, {})
    sections.SECTIONS["speed"](tiny(CPU), report, Deadline(float("inf")))
    [line] = [line for line in report.lines if line.section == "memory"]
    assert (line.verdict, line.reason) == (verdict, reason)
    assert line.values["MiB"] > 0


def test_steps_that_were_not_replayed_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(
        step_times.Bench, "time", lambda *a, **k: step_times.Times(1, 1, 1, "eager")
    )
    code, found = check(tmp_path, "--sections", "speed")
    failed = [line for line in found["lines"] if line["verdict"] == "FAIL"]
    assert code == 1
    assert {line["reason"] for line in failed} == {"it ran eagerly"}


@pytest.mark.parametrize("config", [QWEN3_8B, TINY], ids=["qwen3-8b", "tiny"])
def test_the_spec_is_what_the_loader_reads(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_spec(ModelConfig(path=str(tmp_path), format="dummy"))
    assert replace(spec_of(config), eos_from=read.eos_from) == read


def test_floors_by_hand():
    spec = spec_of({**TINY, "num_hidden_layers": 1})
    hidden, inner, head, vocab = 128, 192, 64, 512
    matrices = hidden * (4 + 2 * 2) * head + 4 * head * hidden + 3 * hidden * inner
    norms = 3 * hidden + 6 * head
    parts = [Part(9, 1), Part(4, 3, False)]
    kv = (10 + 7) * 2 * 2 * head * 4
    moved = 4 * (matrices + norms + hidden * vocab + 4 * hidden + vocab) + kv
    assert step_bytes(spec, parts) == moved
    pairs = 10 + (5 + 6 + 7)
    done = 2 * matrices * 4 + 4 * pairs * 4 * head + 2 * vocab * hidden
    assert step_ops(spec, parts) == done
    assert floor_ms(spec, parts, Ceilings(100.0, 1e12)) == moved / 100
    assert floor_ms(spec, parts, Ceilings(1e12, 100.0)) == done / 100


def test_qwen3_8b_weighs_what_it_should():
    spec = spec_of(QWEN3_8B)
    assert 15.2 < weight_bytes(spec) / 2**30 < 15.4
    assert spec.kv_bytes_per_token == 147456


def test_the_schedule_is_legal_and_ends():
    schedule = Schedule(SHORT, budget=32, max_rows=4, block_size=16, vocab_size=TINY["vocab_size"])
    computed: dict[int, int] = {}
    sampled, mixed = 0, 0
    while (so := schedule.next_step()) is not None:
        assert so.num_tokens <= 32
        for row in so.freed_rows:
            del computed[row]
        for new in so.new_rows:
            assert new.row not in computed
            computed[new.row] = 0
        for row, before, count in zip(
            so.rows.tolist(),
            so.num_computed_tokens.tolist(),
            so.num_scheduled_tokens.tolist(),
            strict=True,
        ):
            assert computed[row] == before
            computed[row] += count
        counts = so.num_scheduled_tokens
        mixed += bool((counts > 1).any() and (counts == 1).any())
        sampled += int(so.samples.sum())
        schedule.sampled(so, [7] * int(so.samples.sum()))
    assert sampled == sum(output for _, output in SHORT)
    assert mixed >= 3


def test_the_pool_shares_blocks_only_when_it_must():
    pool = Pool(4, 16)
    assert pool.take(33) == [2, 3, 4]
    assert pool.take(17) == [5, 2]


def test_the_attention_reference_by_hand():
    from attention_backends import AttentionShape, LayerKV

    shape = AttentionShape(2, 1, 4, torch.float32, torch.float32, 0.5, window=2)
    batch = make_batch([2], [3], 2, CPU)
    blocks = batch.block_table_cpu[0]
    kv = LayerKV(torch.randn(4, 2, 1, 4), torch.randn(4, 2, 1, 4))
    q = torch.randn(int(batch.query_start_loc_cpu[-1]), 2, 4)
    out = attention_in_float64(q, kv, batch, shape)
    keys = [(int(blocks[i // 2]), i % 2) for i in range(3)]
    for token, seen in ((0, keys[0:2]), (1, keys[1:3])):
        for head in range(2):
            scores = [float(q[token, head].double() @ kv.k[b, o, 0].double()) / 2 for b, o in seen]
            weights = np.exp(scores) / np.exp(scores).sum()
            want = sum(
                w * kv.v[b, o, 0].double().numpy() for w, (b, o) in zip(weights, seen, strict=True)
            )
            np.testing.assert_allclose(out[token, head].numpy(), want, rtol=1e-10)


def test_tiny_on_a_gpu_keeps_the_real_modes():
    scale = tiny(torch.device("cuda"))
    assert (scale.decode_mode, scale.backends) == ("full", None)
    assert scale.has_aims
