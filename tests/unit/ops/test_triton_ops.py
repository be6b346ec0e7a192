"""The Triton ops without a GPU: interpreted against their twins, and compiled for chips."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from runtime.ops.argmax import argmax
from runtime.ops.norm_rotary import norm_rotary
from runtime.ops.rotary import rotation

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton: not installed")


def run_aside(script: str, **env: str) -> None:
    """Run pytest on one file in its own process; its report is this test's failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / script)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]


@needs_triton
def test_kernels_interpreted() -> None:
    run_aside("triton_op_cases.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_each_chip(tmp_path: Path) -> None:
    run_aside("triton_op_compiles.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))


def test_importing_the_ops_imports_no_triton() -> None:
    code = "import sys, runtime.ops; print('triton' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_argmax_twin() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0], [torch.nan, 9.0, 0.0], [-torch.inf] * 3])
    ids, top = argmax(scores.bfloat16())
    assert ids.tolist()[::2] == [1, 0]
    assert top.isnan().tolist() == [False, True, False]
    assert top.dtype == torch.float32


def test_norm_rotary_twin_rotates_with_and_without_a_norm() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    turn = rotation(torch.tensor([0, 5]), torch.tensor([1.0, 0.1]), 1.0, torch.float32)
    plain = norm_rotary(x, None, 1e-6, turn)
    torch.testing.assert_close(plain[0], x[0])  # position 0 does not turn
    weight = torch.full((3, 4), 2.0)
    normed = norm_rotary(x, weight, 1e-6, turn)
    size = normed.pow(2).mean(-1).sqrt()
    torch.testing.assert_close(size, torch.full_like(size, 2.0))
    cosine = torch.cosine_similarity(plain, normed, -1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
