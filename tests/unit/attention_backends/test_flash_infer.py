"""`flash_infer` over a strict fake: numbers, frozen launches, fences, workspaces, refusals."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_backends import _chip, _flash_infer_wrappers, flash_infer
from attention_backends._flash_infer_metadata import Pages
from attention_backends._flash_infer_wrappers import LIBRARY
from attention_backends._interface import AttentionShape, Bucket, GraphSupport
from attention_backends.flash_infer import Backend
from tests.unit.attention_backends.fakes import fake_flashinfer
from tests.unit.attention_backends.fakes.recording import KernelError
from tests.unit.attention_backends.paging import Step, make_shape, make_step

CPU = torch.device("cpu")
HALF = torch.float16
SHAPES = {
    "grouped": make_shape((4, 2), 64, HALF),
    "no group": make_shape((2, 2), 64, HALF),
    "window": make_shape((4, 2), 64, HALF, window=37),
    "window and cap": make_shape((4, 1), 64, HALF, window=50, softcap=3.0),
}
MIXES = {
    "decode": ([1, 1, 1], [1, 65, 300]),
    "prefill": ([70, 5], [70, 5]),
    "mixed": ([1, 40, 1, 3], [130, 90, 1, 67]),
    "empty rows": ([1, 0, 6], [9, 0, 6]),
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = fake_flashinfer.make_module()
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(_chip, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(flash_infer, "is_installed", lambda name: True)
    monkeypatch.setattr(flash_infer, "version_of", lambda names: "0.7.2.post1")
    monkeypatch.setattr(flash_infer, "FLOAT_WORKSPACE_BYTES", 64)
    monkeypatch.setattr(
        _flash_infer_wrappers,
        "make_event",
        lambda device: fake_flashinfer.FakeEvent(module.stream),
    )
    return module


def run(backend: Backend, step: Step, plan: object = None) -> Tensor:
    out = torch.full_like(step.q, math.nan)
    backend.attend(0, step.q, step.kv, out, plan or backend.plan(step.batch))
    return out


def check(out: Tensor, step: Step) -> None:
    torch.testing.assert_close(out[: step.real].double(), step.expected(), atol=2e-3, rtol=2e-3)
    assert out.isfinite().all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_numbers(shape: AttentionShape, mix: str, padded: bool) -> None:
    pad = {"num_tokens": 128, "num_reqs": 8} if padded else {}
    step = make_step(shape, 16, *MIXES[mix], **pad)
    check(run(Backend([shape], 16, CPU), step), step)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_block_sizes(block_size: int) -> None:
    step = make_step(SHAPES["window"], block_size, *MIXES["mixed"])
    check(run(Backend([step.shape], block_size, CPU), step), step)


@pytest.mark.usefixtures("library")
def test_tail_of_padding_longer_than_the_block_table() -> None:
    step = make_step(SHAPES["grouped"], 16, [20], [20], num_tokens=96, num_reqs=3, max_blocks=2)
    check(run(Backend([step.shape], 16, CPU), step), step)


def test_pages() -> None:
    step = make_step(SHAPES["grouped"], 4, [1, 0, 3, 1], [4, 0, 9, 1])
    pages = Pages.of(step.batch, 4)
    table = step.batch.block_table_cpu
    assert pages.query_start.tolist() == [0, 1, 1, 4, 5]
    assert pages.start.tolist() == [0, 1, 1, 4, 5]
    assert pages.indices.tolist() == [table[0, 0], *table[2, :3], table[3, 0]]
    assert pages.last_len.tolist() == [4, 0, 1, 1]
    # its own memory: the runner's staging arrays are overwritten while plans still copy
    step.batch.query_start_loc_cpu[:] = 99
    assert pages.query_start.tolist() == [0, 1, 1, 4, 5]


def test_steps_in_a_row_wait_for_the_pinned_buffer(library: ModuleType) -> None:
    backend = Backend([SHAPES["grouped"]], 16, CPU)
    for mix in ("mixed", "prefill", "decode", "decode", "mixed"):
        step = make_step(SHAPES["grouped"], 16, *MIXES[mix])
        backend.plan(step.batch)
    check(run(backend, step), step)
    # without the fence the fake sees it
    wrapper = backend._mixed[0]
    wrapper._copied = _flash_infer_wrappers.NoEvent()
    with pytest.raises(KernelError, match="overwritten in flight"):
        wrapper.plan(Pages.of(step.batch, 16))


def test_layers_of_two_shapes(library: ModuleType) -> None:
    shapes = [SHAPES["grouped"], SHAPES["window"], SHAPES["grouped"]]
    backend = Backend(shapes, 16, CPU)
    steps = [make_step(shape, 16, *MIXES["mixed"]) for shape in shapes]
    plan = backend.plan(steps[0].batch)
    for layer, step in enumerate(steps):
        out = torch.full_like(step.q, math.nan)
        backend.attend(layer, step.q, step.kv, out, plan)
        check(out, step)
    assert len(library.calls) == 3


class Capture:
    """Graphs of two layers of different shapes, recorded once and replayed over static buffers."""

    def __init__(
        self, backend: Backend, library: ModuleType, bucket: Bucket, dummies: list[Step]
    ) -> None:
        self.backend, self.library, self.steps = backend, library, dummies
        self.plan = backend.open_bucket(bucket, dummies[0].batch)
        self.outs = [torch.full_like(dummy.q, math.nan) for dummy in dummies]
        self.calls = self._launch()
        self.frozen = [call.frozen() for call in self.calls]

    def _launch(self) -> list:
        first = len(self.library.calls)
        for layer, (step, out) in enumerate(zip(self.steps, self.outs, strict=True)):
            self.backend.attend(layer, step.q, step.kv, out, self.plan)
        return self.library.calls[first:]

    def replay(self, steps: list[Step]) -> None:
        for static, step in zip(self.steps, steps, strict=True):
            static.q.copy_(step.q)
            static.kv.k.copy_(step.kv.k)
            static.kv.v.copy_(step.kv.v)
        self.backend.refresh(self.plan, steps[0].batch)
        for call, out, step in zip(self.calls, self.outs, steps, strict=True):
            out.fill_(math.nan)
            call.replay()
            check(out, step)
        assert [call.frozen() for call in self._launch()] == self.frozen


def test_captured_decode(library: ModuleType) -> None:
    shapes = [SHAPES["grouped"], SHAPES["window"]]
    backend = Backend(shapes, 16, CPU)
    buckets = [Bucket("decode", n, n) for n in (2, 4, 6)]
    assert backend.reserve(buckets, 320) > 0

    def make_steps(size: int, lens: list[int]) -> list[Step]:
        pad = {"num_tokens": size, "num_reqs": size, "max_blocks": 20, "num_blocks": 140}
        return [make_step(s, 16, [1] * len(lens), lens, **pad, seed=len(lens)) for s in shapes]

    graphs = {
        bucket.num_reqs: Capture(backend, library, bucket, make_steps(bucket.num_reqs, [1]))
        for bucket in reversed(buckets)
    }
    eager = make_step(shapes[0], 16, *MIXES["mixed"])
    for n in (1, 6, 2, 3, 5, 4):
        size = next(b.num_reqs for b in buckets if b.num_reqs >= n)
        graphs[size].replay(make_steps(size, [(320, 1, 17, 160)[i % 4] for i in range(n)]))
        check(run(backend, eager), eager)  # eager steps in between disturb nothing


def test_replay_without_refresh_is_seen(library: ModuleType) -> None:
    """Buckets share the integer workspace, so the last plan must be the replayed bucket's."""
    shape = SHAPES["grouped"]
    backend = Backend([shape], 16, CPU)
    buckets = [Bucket("decode", n, n) for n in (1, 2)]
    backend.reserve(buckets, 64)
    calls = []
    for bucket in buckets:
        step = make_step(shape, 16, [1], [5], num_tokens=bucket.num_tokens, max_blocks=4)
        plan = backend.open_bucket(bucket, step.batch)
        run(backend, step, plan)
        calls.append(library.calls[-1])
    with pytest.raises(KernelError, match="another wrapper's plan"):
        calls[0].replay()


def test_workspaces_fit(library: ModuleType) -> None:
    """64 bytes are too few for the buckets: `reserve` asks, and makes room before any plan."""
    shape = SHAPES["grouped"]
    backend = Backend([shape], 16, CPU)
    reserved = backend.reserve([Bucket("decode", 4, 4)], 64)
    step = make_step(shape, 16, [1] * 4, [64] * 4, max_blocks=4)
    plan = backend.open_bucket(Bucket("decode", 4, 4), step.batch)
    wrapper = plan.wrappers[0]._wrapper
    floats, ints = wrapper._floats.nbytes, wrapper._ints.nbytes
    assert ints < fake_flashinfer.PINNED_BYTES
    assert reserved == floats + ints + 4 * (5 + 4 * 4 + 4)
    check(run(backend, step, plan), step)


@pytest.mark.usefixtures("library")
def test_buckets_refused() -> None:
    shape = SHAPES["grouped"]
    backend = Backend([shape], 16, CPU)
    assert backend.reserve([], 64) == 0
    with pytest.raises(ValueError, match="cannot be captured for"):
        backend.reserve([Bucket("ragged", 64, 5)], 64)
    backend.reserve([Bucket("decode", 2, 2)], 64)
    step = make_step(shape, 16, [1], [5])
    with pytest.raises(ValueError, match="was not reserved"):
        backend.open_bucket(Bucket("decode", 1, 1), step.batch)
    step = make_step(shape, 16, [1, 1], [5, 6])
    plan = backend.open_bucket(Bucket("decode", 2, 2), step.batch)
    with pytest.raises(ValueError, match="each row of a decode bucket"):
        backend.refresh(plan, make_step(shape, 16, [2], [2], num_reqs=2).batch)


def test_fake_catches_an_adapter_that_errs(library: ModuleType) -> None:
    """Without this, the tests above would prove little."""
    step = make_step(SHAPES["grouped"], 16, *MIXES["mixed"])
    wrapper = Backend([step.shape], 16, CPU)._mixed[0]
    pages = Pages.of(step.batch, 16)
    good = {**wrapper._metadata(pages), **wrapper._problem()}
    changes = [
        {"qo_indptr": pages.query_start.long()},
        {"paged_kv_last_page_len": torch.full_like(pages.last_len, 17)},
        {"paged_kv_indices": pages.indices[:-1]},
        {"causal": False},
    ]
    for change in changes:
        with pytest.raises(KernelError):
            wrapper._wrapper.plan(**good | change)
    del good["q_data_type"]
    wrapper._wrapper.plan(**good)
    with pytest.raises(KernelError, match="planned for"):
        wrapper.run(step.q, step.kv, torch.empty_like(step.q))


class TestExamine:
    @pytest.mark.usefixtures("library")
    def test_able(self) -> None:
        support = Backend.examine(make_shape((71, 1), 128, torch.bfloat16), 1, CPU)
        assert support.ok, support.reason
        assert support.graph is GraphSupport.ONE_TOKEN
        assert support.host_plan
        assert not support.bucketed_kv

    @pytest.mark.usefixtures("library")
    @pytest.mark.parametrize(
        ("shape", "reason"),
        [
            (make_shape(dtype=torch.float32), "dtype torch.float32 is not supported"),
            (make_shape(head_dim=80, dtype=HALF), "head_dim 80 is not one of 64, 128, 256"),
            (make_shape((7, 2), dtype=HALF), "7 query heads do not divide"),
            (AttentionShape(4, 2, 64, HALF, torch.float8_e4m3fn, 0.1), "the cache must hold"),
        ],
    )
    def test_shapes_refused(self, shape: AttentionShape, reason: str) -> None:
        assert reason in Backend.examine(shape, 16, CPU).reason
        with pytest.raises(ValueError, match=f"flash_infer: {reason}"):
            Backend([shape], 16, CPU)

    def test_what_is_missing(self, library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        def reason(*installed: str, nvcc: bool = True, ninja: bool = True) -> str:
            monkeypatch.setattr(flash_infer, "is_installed", lambda name: name in installed)
            monkeypatch.setattr(flash_infer, "_has_nvcc", lambda: nvcc)
            monkeypatch.setattr(flash_infer.shutil, "which", lambda name: ninja or None)
            return Backend.examine(SHAPES["grouped"], 16, CPU).reason

        assert "pip install flashinfer-python" in reason()
        assert "pip install apache-tvm-ffi" in reason("flashinfer")
        assert "nvcc is not on the PATH" in reason("flashinfer", "tvm_ffi", nvcc=False)
        assert "ninja is not on the PATH" in reason("flashinfer", "tvm_ffi", ninja=False)
        assert not reason("flashinfer", "tvm_ffi")
        compiled = ("flashinfer", "tvm_ffi", "flashinfer_jit_cache")
        assert not reason(*compiled, nvcc=False, ninja=False)
        monkeypatch.setattr(_chip, "compute_capability", lambda device: None)
        assert "needs an NVIDIA GPU, not device cpu" in reason(*compiled)

    @pytest.mark.parametrize(
        ("version", "ok"), [("0.6.13", False), ("0.7.2.post1", True), ("1.0", True)]
    )
    def test_version(
        self, version: str, ok: bool, library: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flash_infer, "version_of", lambda names: version)
        support = Backend.examine(SHAPES["grouped"], 16, CPU)
        assert support.ok == ok
        assert ok or f"flashinfer-python {version} is too old" in support.reason

    def test_nvcc_is_looked_for(self, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flash_infer.shutil, "which", lambda name: None)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        monkeypatch.delenv("CUDA_PATH", raising=False)
        before = flash_infer._has_nvcc()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "nvcc").touch()
        assert flash_infer._has_nvcc()
        assert before == (flash_infer.Path("/usr/local/cuda/bin/nvcc").is_file())


def test_the_calls_that_are_checked_are_those_that_are_made(library: ModuleType) -> None:
    backend = Backend([SHAPES["grouped"]], 16, CPU)
    backend.reserve([Bucket("decode", 2, 2)], 64)
    checked = {call.function: set(call.keywords) for call in LIBRARY.calls}
    step = make_step(SHAPES["grouped"], 16, *MIXES["decode"])
    pages = Pages.of(step.batch, 16)
    for planned in (backend._mixed[0], backend._decode[0]):
        name = type(planned._wrapper).__name__
        made = {"self", *planned._metadata(pages), *planned._problem()}
        assert checked[f"{name}.plan"] == made | {"non_blocking"}
        assert checked.get(f"{name}.workspace_size", made) == made


def test_empty_plan_arrays_are_int32() -> None:
    step = make_step(SHAPES["grouped"], 16, [1], [1])
    step.batch.seq_lens_cpu = np.zeros(1, np.int32)
    step.batch.seq_lens = torch.zeros(1, dtype=torch.int32)
    pages = Pages.of(step.batch, 16)
    assert pages.indices.dtype == torch.int32
    assert pages.indices.numel() == 0
