"""`flash_attention` over strict fakes: numbers, frozen launches, and refusals."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from attention_backends import _chip, _flash_attention_2, _flash_attention_3
from attention_backends._flash_attention_2 import kv_class
from attention_backends._flash_attention_3 import num_splits
from attention_backends._interface import AttentionShape, Bucket, GraphSupport
from attention_backends._kernel_library import open_library
from attention_backends.flash_attention import Backend
from tests.unit.attention_backends.fakes import fake_flash_attention_2 as fake2
from tests.unit.attention_backends.fakes import fake_flash_attention_3 as fake3
from tests.unit.attention_backends.fakes.recording import KernelError, Recorder
from tests.unit.attention_backends.paging import Step, make_shape, make_step

CPU = torch.device("cpu")
HALF = torch.float16
SHAPES = {
    "grouped": make_shape((4, 2), 16, HALF),
    "no group": make_shape((2, 2), 16, HALF),
    "window": make_shape((4, 2), 16, HALF, window=37),
    "window of 1": make_shape((4, 2), 16, HALF, window=1),
    "window and cap": make_shape((4, 1), 24, HALF, window=50, softcap=3.0),
}
MIXES = {
    "decode": ([1, 1, 1], [1, 65, 300]),
    "one decode": ([1], [40]),
    "prefill": ([70, 5], [70, 5]),
    "mixed": ([1, 40, 1, 3], [130, 90, 1, 67]),
    "empty rows": ([1, 0, 6], [9, 0, 6]),
    "decodes and empty rows": ([1, 0, 1], [9, 0, 6]),
}


def install(
    monkeypatch: pytest.MonkeyPatch, chip: tuple[int, int] | None, *modules: str
) -> dict[str, Recorder]:
    """Pretend that the chip and only these libraries are here; returns their launches."""
    open_library.cache_clear()
    monkeypatch.setattr(_chip, "compute_capability", lambda device: chip)
    monkeypatch.setattr(_flash_attention_3, "compute_capability", lambda device: chip)
    for module in (_flash_attention_2, _flash_attention_3):
        monkeypatch.setattr(module, "is_installed", lambda name: name in modules)
    fakes = {
        "flash_attn": fake2.make_module(),
        "flash_attn_interface": fake3.make_module(),
        "flash_attn_config": fake3.make_config(),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    return {name: fakes[name].calls for name in modules}


@pytest.fixture
def fa3(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return install(monkeypatch, (9, 0), "flash_attn_interface")["flash_attn_interface"]


@pytest.fixture
def fa2(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return install(monkeypatch, (8, 9), "flash_attn")["flash_attn"]


def run(backend: Backend, step: Step, plan: object = None) -> Tensor:
    out = torch.full_like(step.q, math.nan)
    backend.attend(0, step.q, step.kv, out, plan or backend.plan(step.batch))
    return out


def check(out: Tensor, step: Step) -> None:
    torch.testing.assert_close(out[: step.real].double(), step.expected(), atol=2e-3, rtol=2e-3)
    assert out.isfinite().all()


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
class TestNumbers:
    def test_flash_attention_3(self, shape: AttentionShape, mix: str, fa3: Recorder) -> None:
        step = make_step(shape, 16, *MIXES[mix], num_tokens=128, num_reqs=8, garbage=3.0)
        check(run(Backend([shape], 16, CPU), step), step)
        assert len(fa3) == 1

    def test_flash_attention_2(self, shape: AttentionShape, mix: str, fa2: Recorder) -> None:
        step = make_step(shape, 256, *MIXES[mix])
        check(run(Backend([shape], 256, CPU), step), step)
        assert len(fa2) == 1

    def test_flash_attention_2_padded(self, shape: AttentionShape, mix: str, fa2: Recorder) -> None:
        step = make_step(shape, 256, *MIXES[mix], num_tokens=128, num_reqs=8)
        check(run(Backend([shape], 256, CPU), step), step)


def test_tail_of_padding_longer_than_the_block_table(
    fa3: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step(
        SHAPES["window"], 16, [20], [20], num_tokens=96, num_reqs=3, max_blocks=2, garbage=1.0
    )
    backend = Backend([step.shape], 16, CPU)
    check(run(backend, step), step)
    bucket = Bucket("ragged", 96, 3)
    plan = backend.open_bucket(bucket, step.batch)
    check(run(backend, step, plan), step)
    other = make_step(
        SHAPES["window"], 16, [30, 1], [30, 4], num_tokens=96, num_reqs=3, max_blocks=2, garbage=1.0
    )
    address = plan.key_lens.data_ptr()
    backend.refresh(plan, other.batch)
    assert plan.key_lens.data_ptr() == address
    check(run(backend, other, plan), other)

    install(monkeypatch, (8, 0), "flash_attn")
    long = make_step(SHAPES["window"], 256, [20], [20], num_tokens=600, num_reqs=3, max_blocks=2)
    check(run(Backend([long.shape], 256, CPU), long), long)


class Capture:
    """A graph of one attention: the launch is recorded once, then replayed over static buffers."""

    def __init__(self, backend: Backend, calls: Recorder, bucket: Bucket, dummy: Step) -> None:
        self.backend, self.calls, self.step = backend, calls, dummy
        self.plan = backend.open_bucket(bucket, dummy.batch)
        run(backend, dummy, self.plan)
        self.call = calls[-1]
        self.frozen = self.call.frozen()

    def replay(self, step: Step) -> Tensor:
        """As a graph would: the ints of the capture, the values that the buffers hold now."""
        self.step.q.copy_(step.q)
        self.step.kv.k.copy_(step.kv.k)
        self.step.kv.v.copy_(step.kv.v)
        self.backend.refresh(self.plan, step.batch)
        out = self.call.replay()
        # a fresh launch would bake the same addresses and ints
        run(self.backend, self.step, self.plan)
        assert self.calls[-1].frozen() == self.frozen
        return out.reshape(step.q.shape)


@pytest.mark.parametrize("name", ["grouped", "window and cap"])
def test_captured_decode_of_version_3(name: str, fa3: Recorder) -> None:
    shape = SHAPES[name]
    backend = Backend([shape], 16, CPU)
    bucket = Bucket("decode", 8, 8)
    assert backend.reserve([bucket], 512) == 0
    pad = {"num_tokens": 8, "num_reqs": 8, "max_blocks": 32, "num_blocks": 200, "garbage": 0.5}
    graph = Capture(backend, fa3, bucket, make_step(shape, 16, [1], [1], **pad))
    assert graph.frozen["num_splits"] == 32
    for n in range(1, 9):
        lens = [1 + (37 * (n + i)) % 400 for i in range(n)]
        step = make_step(shape, 16, [1] * n, lens, **pad, seed=n)
        check(graph.replay(step), step)


def test_captured_ragged_steps_of_version_3(fa3: Recorder) -> None:
    shape = SHAPES["window"]
    backend = Backend([shape], 16, CPU)
    bucket = Bucket("ragged", 64, 6)
    pad = {"num_tokens": 64, "num_reqs": 6, "max_blocks": 16, "num_blocks": 100, "garbage": 0.5}
    graph = Capture(backend, fa3, bucket, make_step(shape, 16, [1], [1], **pad))
    assert graph.frozen["num_splits"] == 1
    assert graph.frozen["max_seqlen_q"] == 64
    for queries, keys in [
        ([64], [200]),
        ([1], [256]),
        ([1, 1, 1], [4, 100, 7]),
        ([40, 1, 3], [90, 130, 67]),
        ([59, 1, 1, 1, 1, 1], [59, 2, 3, 4, 5, 6]),
    ]:
        step = make_step(shape, 16, queries, keys, **pad)
        check(graph.replay(step), step)


@pytest.mark.parametrize("name", ["grouped", "window"])
@pytest.mark.parametrize("kv_class", [0, 1024, 2048])
def test_captured_decode_of_version_2(name: str, kv_class: int, fa2: Recorder) -> None:
    shape = SHAPES[name]
    backend = Backend([shape], 256, CPU)
    bucket = Bucket("decode", 4, 4, kv_class)
    assert backend.reserve([bucket], 2048) == 0
    pad = {"num_tokens": 4, "num_reqs": 4, "max_blocks": 8, "num_blocks": 40}
    graph = Capture(backend, fa2, bucket, make_step(shape, 256, [1], [1], **pad))
    width = graph.frozen["block_table"][1][1]
    assert width * 256 == (kv_class or 2048)
    for n in range(1, 5):
        step = make_step(shape, 256, [1] * n, [1000, 1, 257, 1024][:n], **pad, seed=n)
        check(graph.replay(step), step)


def test_step_beyond_what_its_graph_reads(fa2: Recorder) -> None:
    pad = {"num_tokens": 2, "num_reqs": 2, "max_blocks": 8}
    backend = Backend([SHAPES["grouped"]], 256, CPU)
    plan = backend.open_bucket(
        Bucket("decode", 2, 2, 1024), make_step(SHAPES["grouped"], 256, [1], [1], **pad).batch
    )
    long = make_step(SHAPES["grouped"], 256, [1], [1025], **pad)
    with pytest.raises(ValueError, match="1025 tokens, its bucket reads 1024"):
        backend.refresh(plan, long.batch)


def test_chunk_in_a_decode_graph(fa2: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = make_step(SHAPES["grouped"], 256, [2], [2], num_tokens=3, num_reqs=3)
    one = make_step(SHAPES["grouped"], 256, [1], [2], num_tokens=3, num_reqs=3)
    backend = Backend([SHAPES["grouped"]], 256, CPU)
    plan = backend.open_bucket(Bucket("decode", 3, 3), one.batch)
    with pytest.raises(ValueError, match="each row of a decode bucket"):
        backend.refresh(plan, chunk.batch)
    install(monkeypatch, (9, 0), "flash_attn_interface")
    backend = Backend([SHAPES["grouped"]], 256, CPU)
    plan = backend.open_bucket(Bucket("decode", 3, 3), one.batch)
    with pytest.raises(ValueError, match="more query tokens than its bucket"):
        backend.refresh(plan, chunk.batch)


def test_version_2_refuses_ragged_graphs(fa2: Recorder) -> None:
    backend = Backend([SHAPES["grouped"]], 256, CPU)
    with pytest.raises(ValueError, match="cannot be captured in ragged steps"):
        backend.reserve([Bucket("decode", 1, 1), Bucket("ragged", 64, 5)], 512)
    step = make_step(SHAPES["grouped"], 256, [1], [1])
    with pytest.raises(ValueError, match="cannot be captured for"):
        backend.open_bucket(Bucket("ragged", 64, 5), step.batch)


def test_eager_decode_splits_keys_as_its_bucket_does() -> None:
    assert {num_splits(1, n) for n in (17, 24, 32)} == {32}
    assert num_splits(1, 256) == 8
    assert num_splits(1, 4096) == 1
    assert num_splits(2, 1) == 1
    assert [kv_class(n) for n in (1, 1024, 1025, 4096)] == [1024, 1024, 2048, 4096]


def test_cache_is_finite(fa3: Recorder) -> None:
    """With NaN behind the last key version 3 returns NaN: hence the zeroed cache."""
    shape = SHAPES["grouped"]
    step = make_step(shape, 16, [1], [20], garbage=math.nan)
    backend = Backend([shape], 16, CPU)
    assert run(backend, step).isnan().any()
    layers = Backend([shape] * 3, 16, CPU).allocate_kv(5)
    assert len(layers) == 3
    for k, v in layers:
        assert k.shape == v.shape == (5, 16, 2, 16)
        assert k.stride() == v.stride()
        assert not k.any()
        assert not v.any()


@pytest.mark.parametrize("version", ["fa2", "fa3"])
def test_fakes_catch_an_adapter_that_errs(version: str, request: pytest.FixtureRequest) -> None:
    """Without this, the tests above would prove little."""
    calls = request.getfixturevalue(version)
    step = make_step(SHAPES["grouped"], 256, *MIXES["mixed"], garbage=0.0)
    run(Backend([step.shape], 256, CPU), step)
    call = calls[-1]
    for change in (
        {"cu_seqlens_q": call.arguments["cu_seqlens_q"].long()},
        {"q": call.arguments["q"].float()},
        {"causal": False},
    ):
        with pytest.raises(KernelError):
            call.function(**call.arguments | change)
    assert call.function(**call.arguments | {"max_seqlen_q": 3}).isnan().any()
    if version == "fa2":
        with pytest.raises(KernelError, match="45 rows for 4 sequences"):
            call.function(**call.arguments | {"max_seqlen_q": 1})
    else:
        with pytest.raises(KernelError, match="explicit bound"):
            call.function(**call.arguments | {"num_splits": 0})


class TestExamine:
    def test_hopper_prefers_version_3(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, (9, 0), "flash_attn", "flash_attn_interface")
        support = Backend.examine(SHAPES["grouped"], 16, CPU)
        assert support.ok
        assert support.graph is GraphSupport.RAGGED
        assert not support.bucketed_kv

    def test_soft_cap_falls_to_version_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = install(monkeypatch, (9, 0), "flash_attn", "flash_attn_interface")
        config = fake3.make_config(SOFTCAP=True)
        monkeypatch.setitem(sys.modules, "flash_attn_config", config)
        shape = SHAPES["window and cap"]
        assert Backend.examine(SHAPES["grouped"], 16, CPU).graph is GraphSupport.RAGGED
        support = Backend.examine(shape, 256, CPU)
        assert support.ok
        assert support.graph is GraphSupport.ONE_TOKEN
        refused = Backend.examine(shape, 16, CPU)
        assert "built without soft cap" in refused.reason
        assert "multiple of 256, not 16" in refused.reason
        assert refused.preferred_block_size == 256
        step = make_step(shape, 256, *MIXES["mixed"])
        # one layer without a cap does not change the version that serves both
        check(run(Backend([shape, SHAPES["grouped"]], 256, CPU), step), step)
        assert calls["flash_attn"]
        assert not calls["flash_attn_interface"]

    def test_ada_takes_version_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, (8, 9), "flash_attn", "flash_attn_interface")
        support = Backend.examine(SHAPES["grouped"], 512, CPU)
        assert support.ok
        assert support.graph is GraphSupport.ONE_TOKEN
        assert support.block_size_multiple == support.preferred_block_size == 256
        assert support.bucketed_kv

    @pytest.mark.parametrize(
        ("disabled", "shape", "reason"),
        [
            ("PAGEDKV", SHAPES["grouped"], "without paged KV"),
            ("LOCAL", SHAPES["window"], "without sliding windows"),
            ("FP16", SHAPES["grouped"], "without float16"),
            ("HDIM256", make_shape(head_dim=256, dtype=HALF), "without head_dim 256"),
        ],
    )
    def test_builds_that_leave_things_out(
        self,
        disabled: str,
        shape: AttentionShape,
        reason: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        install(monkeypatch, (9, 0), "flash_attn_interface")
        assert Backend.examine(shape, 16, CPU).ok
        config = fake3.make_config(**{disabled: True})
        monkeypatch.setitem(sys.modules, "flash_attn_config", config)
        assert reason in Backend.examine(shape, 16, CPU).reason

    @pytest.mark.parametrize(
        ("shape", "reason"),
        [
            (make_shape(dtype=torch.float32), "dtype torch.float32 is not supported"),
            (make_shape(head_dim=264, dtype=HALF), "head_dim 264 is not a multiple of 8 up to 256"),
            (make_shape(head_dim=100, dtype=HALF), "head_dim 100 is not a multiple of 8"),
            (make_shape((7, 2), dtype=HALF), "7 query heads do not divide"),
        ],
    )
    def test_shapes_refused(
        self, shape: AttentionShape, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(monkeypatch, (9, 0), "flash_attn", "flash_attn_interface")
        assert reason in Backend.examine(shape, 256, CPU).reason
        with pytest.raises(ValueError, match=reason):
            Backend([shape], 256, CPU)

    def test_nothing_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, (9, 0))
        support = Backend.examine(SHAPES["grouped"], 16, CPU)
        assert "pip install tokenspeed-fa3" in support.reason
        assert "pip install flash-attn" in support.reason

    def test_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, None, "flash_attn", "flash_attn_interface")
        support = Backend.examine(SHAPES["grouped"], 16, CPU)
        assert "FlashAttention 3 needs a Hopper GPU" in support.reason
        assert "FlashAttention 2 needs an NVIDIA GPU, not device cpu" in support.reason


@pytest.mark.parametrize(
    ("version", "module"), [("fa2", _flash_attention_2), ("fa3", _flash_attention_3)]
)
def test_the_calls_that_are_checked_are_those_that_are_made(
    version: str, module: ModuleType, request: pytest.FixtureRequest
) -> None:
    calls = request.getfixturevalue(version)
    for mix in ("decode", "mixed"):
        step = make_step(SHAPES["grouped"], 256, *MIXES[mix])
        run(Backend([step.shape], 256, CPU), step)
    made = {call.function.__name__: set(call.arguments) for call in calls}
    assert made == {call.function: set(call.keywords) for call in module.LIBRARY.calls}
