"""tools/quantization_drift.py on the real model and the start of the text that the tests carry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = ROOT / "tests" / "texts" / "lighthouse.txt"


@pytest.mark.slow
def test_drift_is_small(tmp_path: Path, smollm2_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "drift.json"
    text.write_text(TEXT.read_text("utf-8")[:1500], encoding="utf-8")
    command = [sys.executable, "tools/quantization_drift.py", str(smollm2_path)]
    command += ["--text", str(text), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    forms = json.loads(out.read_text())
    assert list(forms) == ["float32", "bfloat16", "int8", "stored", "q8_0"]
    exact, half, quantized, stored, kept = forms.values()
    assert exact["argmax_agreement"] == 1.0
    assert half["argmax_agreement"] > 0.95
    assert quantized["argmax_agreement"] > 0.9
    assert kept["argmax_agreement"] > 0.95
    assert kept["mean_logprob_change"] < quantized["mean_logprob_change"]
    for form in (half, quantized, stored, kept):
        assert form["perplexity"] == pytest.approx(exact["perplexity"], rel=0.02)
        assert 0 < form["mean_logprob_change"] < 0.15
    assert quantized["weight_bytes"] < 0.51 * half["weight_bytes"]
    assert stored["argmax_agreement"] > 0.95
    assert stored["weight_bytes"] < 1.03 * smollm2_path.stat().st_size
    assert kept["weight_bytes"] < 0.54 * half["weight_bytes"]
