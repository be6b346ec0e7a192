"""The CUDA modes over a strict fake of `torch.cuda`: order of calls, streams, pools, failures."""

from __future__ import annotations

import functools
import gc
import inspect

import pytest
import torch

from attention_backends import GraphSupport, Support
from graphs import GraphError, GraphKey, Kind
from graphs._capture.mode import CapturedMode
from graphs._capture.pool import Resources
from graphs._recorders.cuda import CudaRecorder
from graphs.full import Mode as Full
from graphs.ragged import Mode as Ragged
from graphs.segmented import Mode as Segmented
from tests.unit.graphs.driving import Requests
from tests.unit.graphs.fake_cuda import FakeCuda
from tests.unit.graphs.toy import LAYERS, ToyRunner

CPU = torch.device("cpu")
RAGGED = Support(ok=True, graph=GraphSupport.RAGGED)
MAX_TOKENS = 16


class Bench:
    """Modes whose recorder captures into the fake."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.runner = ToyRunner(MAX_TOKENS)
        self.resources = Resources(RAGGED, CPU, MAX_TOKENS, statics=self.runner.statics)
        self._recorder = functools.partial(CudaRecorder, cuda=self.cuda)

    def make(self, mode: type[CapturedMode]) -> CapturedMode:
        return type("Faked", (mode,), {"recorder_type": self._recorder})(self.resources)

    def capture(self, mode: CapturedMode, key: GraphKey) -> None:
        self.runner.fill_dummy(key.num_tokens)
        mode.capture(key, self.runner.call(key))

    def assert_runs(self, mode: CapturedMode, key: GraphKey, num_tokens: int, seed: int) -> None:
        pieces = Requests(seed).step(num_tokens, decode=key.kind is Kind.DECODE)
        expected = self.runner.exact(pieces)
        self.runner.fill(pieces, key.num_tokens)
        hidden = mode.run(key, self.runner.call(key))
        torch.testing.assert_close(hidden[:num_tokens], expected, rtol=1e-12, atol=1e-12)


@pytest.fixture
def bench() -> Bench:
    return Bench()


DECODE = GraphKey(Kind.DECODE, 4, 4)
SEGMENTED = GraphKey(Kind.SEGMENTED, MAX_TOKENS, 4)
KEYS = [(Full, DECODE), (Segmented, SEGMENTED), (Ragged, GraphKey(Kind.RAGGED, MAX_TOKENS, 7))]


@pytest.mark.parametrize(("mode_type", "key"), KEYS)
def test_replays_equal_the_exact_step(bench: Bench, mode_type, key: GraphKey) -> None:
    mode = bench.make(mode_type)
    bench.capture(mode, key)
    for seed in range(5):
        bench.assert_runs(mode, key, key.num_tokens - 1, seed)
    assert all(graph._cuda is bench.cuda for graph in bench.cuda.replays)


@pytest.mark.parametrize(
    ("mode_type", "key", "segments"),
    [(*KEYS[0], 1), (*KEYS[1], LAYERS + 1), (*KEYS[2], 1)],
)
def test_segments(bench: Bench, mode_type, key: GraphKey, segments: int) -> None:
    mode = bench.make(mode_type)
    bench.capture(mode, key)
    assert len(bench.cuda.captures) == segments
    bench.cuda.replays.clear()
    bench.assert_runs(mode, key, key.num_tokens - 1, seed=1)
    assert bench.cuda.replays == bench.cuda.graphs, "each segment once, in the order of capture"


def test_one_pool_and_one_stream_for_all_modes(bench: Bench) -> None:
    for mode_type, key in KEYS:
        bench.capture(bench.make(mode_type), key)
    pools, streams, error_modes = zip(*bench.cuda.captures, strict=True)
    assert set(pools) == {(0, 1)}
    assert len(set(streams)) == 1
    assert streams[0] is not bench.cuda.default
    assert set(error_modes) == {"thread_local"}


def test_graphs_of_several_modes_run_in_any_order(bench: Bench) -> None:
    made = [(bench.make(mode_type), key) for mode_type, key in KEYS]
    for mode, key in made:
        bench.capture(mode, key)
    for seed, index in enumerate([0, 1, 2, 1, 0, 2, 0]):
        mode, key = made[index]
        bench.assert_runs(mode, key, key.num_tokens - 1, seed)


def test_order_around_a_capture(bench: Bench) -> None:
    mode = bench.make(Full)
    bench.cuda.log.clear()
    runs: list[str] = []

    def call(cut):
        runs.append(bench.cuda.current.name + (" captured" if bench.cuda.capturing else ""))
        return bench.runner.call(DECODE)(cut)

    bench.runner.fill_dummy(4)
    mode.capture(DECODE, call)
    assert runs == ["capture", "capture", "capture captured"]
    settled = ["synchronize", "empty_cache"]
    assert bench.cuda.log == [
        *settled,  # memory before
        "capture waits for default",
        *settled,  # after the warm-ups
        "synchronize",
        "default waits for capture",
        *settled,  # memory after
    ]
    assert bench.cuda.current is bench.cuda.default
    assert gc.isenabled()


def test_memory_of_a_capture_is_counted(bench: Bench) -> None:
    mode = bench.make(Segmented)
    bench.runner.fill_dummy(MAX_TOKENS)
    record = mode.capture(SEGMENTED, bench.runner.call(SEGMENTED))
    assert record.num_segments == LAYERS + 1
    assert record.memory_bytes == (LAYERS + 1) << 20
    assert record.num_reqs == 0


def test_only_arguments_that_every_torch_has(bench: Bench) -> None:
    """The fake takes no others; the installed torch takes these."""
    parameters = inspect.signature(torch.cuda.CUDAGraph.capture_begin).parameters
    assert {"pool", "capture_error_mode"} <= set(parameters)


def test_a_key_is_captured_once(bench: Bench) -> None:
    mode = bench.make(Full)
    bench.capture(mode, DECODE)
    with pytest.raises(GraphError, match="captured already"):
        bench.capture(mode, DECODE)


def test_what_was_not_captured_cannot_run(bench: Bench) -> None:
    mode = bench.make(Full)
    bench.capture(mode, DECODE)
    other = GraphKey(Kind.DECODE, 8, 8)
    assert mode.has(DECODE)
    assert not mode.has(other)
    with pytest.raises(
        GraphError, match=r"decode\(8 tokens, 8 requests\) was not captured by full"
    ):
        mode.run(other, bench.runner.call(other))


@pytest.mark.parametrize("at", ["inside", "between"])
def test_a_failed_capture_leaves_no_capture_open(bench: Bench, at: str) -> None:
    mode = bench.make(Segmented)

    def raises() -> None:
        if len(bench.cuda.captures) > 0:
            raise ValueError("kernel does not compile")

    def call(cut):
        hidden = torch.zeros(MAX_TOKENS, 8, dtype=torch.float64) * 2
        cut(lambda: None)
        if at == "between":
            cut(raises)
        elif bench.cuda.capturing is not None:
            bench.cuda.synchronize(CPU)
        return hidden * 2

    with pytest.raises(GraphError, match=r"capture of segmented\(16 tokens\) failed"):
        mode.capture(SEGMENTED, call)
    assert bench.cuda.capturing is None
    assert bench.cuda.current is bench.cuda.default
    assert all(graph.is_reset for graph in bench.cuda.graphs)
    assert gc.isenabled()
    assert not mode.has(SEGMENTED)
    bench.cuda.broken = False
    bench.capture(mode, SEGMENTED)
    bench.assert_runs(mode, SEGMENTED, MAX_TOKENS - 1, seed=1)


def test_out_of_memory_names_the_bucket(bench: Bench) -> None:
    mode = bench.make(Full)

    def call(cut):
        if bench.cuda.capturing is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.zeros(4, 8)

    with pytest.raises(
        GraphError, match=r"memory while capturing decode\(4 tokens, 4 requests\)\. "
    ):
        mode.capture(DECODE, call)
    assert bench.cuda.capturing is None


def test_close_resets_every_graph_then_returns_memory(bench: Bench) -> None:
    modes = [bench.make(mode_type) for mode_type, _ in KEYS]
    for mode, (_, key) in zip(modes, KEYS, strict=True):
        bench.capture(mode, key)
    bench.cuda.log.clear()
    for mode in modes:
        mode.close()
    assert all(graph.is_reset for graph in bench.cuda.graphs)
    assert bench.cuda.log[:2] == ["synchronize", "empty_cache"]
    assert not modes[0].has(DECODE)


def test_a_sync_inside_a_capture_is_an_error_of_the_bucket(bench: Bench) -> None:
    mode = bench.make(Full)

    def call(cut):
        hidden = bench.runner.call(DECODE)(cut)
        return hidden * hidden.sum().item()

    with pytest.raises(GraphError, match=r"Tensor\.item inside a captured region"):
        mode.capture(DECODE, call)
