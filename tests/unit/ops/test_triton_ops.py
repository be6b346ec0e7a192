"""The Triton ops without a GPU: interpreted against their twins, and compiled for chips."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runtime.ops import dispatch
from tests.aside import needs_triton, run_aside

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@needs_triton
def test_kernels_interpreted() -> None:
    run_aside(HERE / "triton_op_cases.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_each_chip(tmp_path: Path) -> None:
    run_aside(HERE / "triton_op_compiles.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))


def test_importing_the_ops_imports_no_triton() -> None:
    code = "import sys, runtime.ops; print('triton' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@needs_triton
def test_dispatch_takes_them_for_a_gpu() -> None:
    def rows(device: str, dtype: torch.dtype, last_stride: int = 1) -> SimpleNamespace:
        where = SimpleNamespace(type=device)
        return SimpleNamespace(device=where, dtype=dtype, stride=lambda i: last_stride)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert dispatch.has_kernels(rows("cuda", dtype), rows("cuda", dtype))
    assert not dispatch.has_kernels(rows("cuda", torch.float64))
    assert not dispatch.has_kernels(rows("cuda", torch.bfloat16, last_stride=2))
    assert not dispatch.has_kernels(rows("cuda", torch.bfloat16), rows("cuda", torch.float32))
    assert not dispatch.has_kernels(rows("meta", torch.float32))


def test_without_triton_the_twins_serve_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert dispatch._triton_ops.__wrapped__() is None
    assert "triton is not installed" in caplog.text


@needs_triton
def test_they_are_a_whole_set() -> None:
    """Every op that `dispatch` may ask for by name."""
    source = Path(dispatch.__file__).read_text()
    names = set(re.findall(r'run_kernel\("(\w+)"', source))
    code = f"from runtime.ops import triton_ops; print({names} - set(dir(triton_ops)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(names) >= 8
    assert done.stdout.strip() == "set()"
