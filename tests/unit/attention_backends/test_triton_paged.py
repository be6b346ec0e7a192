"""`triton_paged` without a GPU: its kernels interpreted, compiled, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attention_backends import _chip
from attention_backends._interface import AttentionShape, GraphSupport
from attention_backends._kernel_library import Opened
from attention_backends.triton_paged import Backend
from tests.aside import needs_triton, run_aside
from tests.unit.attention_backends.paging import make_shape

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GPU = torch.device("cuda", 0)


@needs_triton
def test_kernels_interpreted_in_short() -> None:
    few = "test_every_shape[grouped] or test_every_mix[chunks] or test_split_keys[lens0-half]"
    run_aside(HERE / "triton_cases.py", "-k", few, TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.slow
def test_kernels_interpreted() -> None:
    run_aside(HERE / "triton_cases.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_each_chip(tmp_path: Path) -> None:
    run_aside(HERE / "triton_compiles.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chip, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr("attention_backends.triton_paged.is_installed", lambda name: True)
    monkeypatch.setattr("attention_backends.triton_paged.open_library", lambda _: Opened(None, ""))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("heads", [(32, 8), (9, 3), (71, 71), (64, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_able(dtype: torch.dtype, heads: tuple[int, int], block_size: int) -> None:
    shape = make_shape(heads, 128, dtype, window=4096, softcap=30.0)
    support = Backend.examine(shape, block_size, GPU)
    assert support.ok, support.reason
    assert support.graph is GraphSupport.RAGGED
    assert not support.bucketed_kv


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("shape", "block_size", "reason"),
    [
        (make_shape(head_dim=320, dtype=torch.float16), 16, "head_dim 320 is above 256"),
        (make_shape(dtype=torch.float64), 16, "dtype torch.float64 is not supported"),
        (make_shape(), 24, "block size 24 is not a power of two"),
        (make_shape(), 0, "block size 0 is not a power of two"),
        (make_shape((7, 2)), 16, "7 query heads do not divide among 2 K/V heads"),
        (make_shape((80, 1)), 16, "80 query heads share a K/V head: at most 64"),
    ],
)
def test_refused(shape: AttentionShape, block_size: int, reason: str) -> None:
    support = Backend.examine(shape, block_size, GPU)
    assert not support.ok
    assert reason in support.reason
    with pytest.raises(ValueError, match=f"triton_paged: .*{reason}"):
        Backend([shape], block_size, GPU)


def test_refuses_an_older_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_backends.triton_paged.is_installed", lambda name: True)
    monkeypatch.setattr(_chip, "compute_capability", lambda device: (7, 5))
    reason = Backend.examine(make_shape(), 16, GPU).reason
    assert reason == "needs compute capability 8.0 or newer: cuda:0 has 7.5"


def test_refuses_a_mixed_cache(hopper: None) -> None:
    shape = AttentionShape(4, 2, 64, torch.bfloat16, torch.float8_e4m3fn, 0.1)
    assert "the cache must hold" in Backend.examine(shape, 16, GPU).reason


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_backends.triton_paged.is_installed", lambda name: False)
    assert "pip install triton" in Backend.examine(make_shape(), 16, GPU).reason


@needs_triton
def test_the_installed_triton_takes_our_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chip, "compute_capability", lambda device: (9, 0))
    support = Backend.examine(make_shape(), 16, GPU)
    assert support.ok, support.reason


@needs_triton
@pytest.mark.usefixtures("hopper")  # triton itself is left alone: it would stay interpreted
def test_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "needs an NVIDIA GPU" in Backend.examine(make_shape(), 16, cpu).reason
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert Backend.examine(make_shape(), 16, cpu).ok
    # the interpreter computes nonsense with it, silently
    bfloat16 = make_shape(dtype=torch.bfloat16)
    assert "bfloat16" in Backend.examine(bfloat16, 16, cpu).reason


@needs_triton
def test_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    support = Backend.examine(make_shape(), 16, GPU)
    assert support.reason == "needs an NVIDIA GPU: torch finds no device cuda:0"
