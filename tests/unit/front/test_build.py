"""runtime/front/build.py: what may take seconds at the first start runs at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from runtime import Runtime, RuntimeConfig
from runtime.errors import BackendError, ConfigError, ModelError
from runtime.front import build
from runtime.front.early import choose_device
from tests.builders import write_config


def config(tmp_path: Path, **sections: dict) -> RuntimeConfig:
    return RuntimeConfig(
        model={"path": str(write_config(tmp_path)), "format": "dummy"},
        cache={"num_blocks": 40, "block_size": 8},
        **{"engine": {"device": "cpu"}, **sections},
    )


def test_kernels_are_compiled_while_the_tokenizer_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, right = threading.Event(), build.native_ops

    def compile_kernels() -> None:
        compiling.set()
        right()

    def load_tokenizer(_: object) -> None:
        assert compiling.wait(60), "nothing is compiled before the tokenizer is there"

    monkeypatch.setattr(build, "native_ops", compile_kernels)
    monkeypatch.setattr(build, "load_tokenizer", load_tokenizer)
    build.build_engine(config(tmp_path)).close()


def test_a_bad_tokenizer_is_told_before_a_bad_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = config(tmp_path, attention={"backend": "flash_infer"})
    with pytest.raises(BackendError, match="flash_infer"):
        build.build_engine(wrong)

    def load_tokenizer(_: object) -> None:
        raise ModelError("no tokenizer")

    monkeypatch.setattr(build, "load_tokenizer", load_tokenizer)
    with pytest.raises(ModelError, match="no tokenizer"):
        build.build_engine(wrong)


@pytest.mark.parametrize("error", [ModelError("no tokenizer"), KeyboardInterrupt()])
def test_a_fault_is_told_while_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    compiling, told, compiled = threading.Event(), threading.Event(), threading.Event()

    def compile_kernels() -> None:
        compiling.set()
        told.wait(20)
        compiled.set()

    def load_tokenizer(_: object) -> None:
        assert compiling.wait(60)
        raise error

    monkeypatch.setattr(build, "native_ops", compile_kernels)
    monkeypatch.setattr(build, "load_tokenizer", load_tokenizer)
    try:
        with pytest.raises(type(error)):
            build.build_engine(config(tmp_path))
        assert not compiled.is_set(), "the error waited for the compilation"
    finally:
        told.set()
    assert compiled.wait(60), "the compilation was given up"


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "this torch is a CPU build"), ("13.0", "no device was found")]
)
def test_cuda_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", version)
    message = f"engine.device: cuda was asked for, but {reason}; allowed here: auto, cpu"
    with pytest.raises(ConfigError, match=message):
        Runtime(config(tmp_path, engine={"device": "cuda"}))
    for wanted in ("auto", "cpu"):
        assert choose_device(wanted).type == "cpu"


def test_cuda_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    chosen = {wanted: choose_device(wanted).type for wanted in ("auto", "cpu", "cuda")}
    assert chosen == {"auto": "cuda", "cpu": "cpu", "cuda": "cuda"}
