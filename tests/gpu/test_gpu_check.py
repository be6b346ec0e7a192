"""The sections of tools/gpu_check.py that compare numbers, on the device, with small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tools import gpu_check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("section", ["ops", "attention", "exact"])
def test_no_line_fails(section: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    code = gpu_check.main(["--tiny", "--sections", section, "--json", str(path)])
    failed = [line for line in json.loads(path.read_text())["lines"] if line["verdict"] == "FAIL"]
    assert (code, failed) == (0, [])
