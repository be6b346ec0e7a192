"""`recorded`: native kernels as a list, over the memory of their recording."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attention_backends import GraphSupport, NativeKernel, Support, compiler_problem, launch
from graphs import Case, Dispatcher, GraphError, GraphKey, GraphSet, Kind, choose_mode, load_mode
from graphs._capture.pool import Resources
from graphs._keys import Call, Cut
from runtime.ops import Linear, add_rms_norm, pack, rms_norm, silu_and_mul

CPU = torch.device("cpu")
RAGGED = Support(True, graph=GraphSupport.RAGGED)
NONE = Support(True, graph=GraphSupport.NONE)
T, HIDDEN = 3, 32
KEY = GraphKey(Kind.DECODE, T, T)
pytestmark = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())


def new_mode(support: Support = RAGGED) -> object:
    return load_mode("recorded")(Resources(support, CPU, max_tokens=8))


def values(seed: int, *shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (T, HIDDEN)), generator=rng).bfloat16()


class Toy:
    """A forward over one buffer: kernels, views, a packed layer, torch ops where asked for."""

    def __init__(self) -> None:
        self.x, self.weight = values(0), values(1, HIDDEN)
        self.linear = Linear(values(2, 2 * HIDDEN, HIDDEN))
        pack([self.linear], int8=False)
        self.cut_runs = 0

    def __call__(self, cut: Cut) -> Tensor:
        residual = rms_norm(self.x, self.weight, 1e-5)
        hidden = silu_and_mul(self.linear(residual).view(T, -1))
        cut(self._between, hidden)
        return add_rms_norm(hidden, residual, self.weight, 1e-5)

    def with_torch_ops(self, cut: Cut) -> Tensor:
        hidden = self(cut)
        hidden = hidden @ hidden.T @ hidden + 1
        hidden.mul_(2)
        return rms_norm(hidden, self.weight, 1e-5)

    def _between(self, hidden: Tensor) -> None:
        self.cut_runs += 1
        hidden.neg_()


def in_place(fn: Callable[..., None], *args: object) -> None:
    fn(*args)


@pytest.mark.parametrize("support", [RAGGED, NONE], ids=["whole", "cut"])
@pytest.mark.parametrize("name", ["__call__", "with_torch_ops"])
def test_a_replay_is_the_forward_over_what_the_buffers_hold(support: Support, name: str) -> None:
    toy, mode = Toy(), new_mode(support)
    call: Call = getattr(toy, name)
    mode.capture(KEY, call)
    for seed in range(5, 8):
        toy.x.copy_(values(seed))
        expected = call(in_place).clone()
        assert torch.equal(mode.run(KEY, call), expected)


def test_nothing_runs_while_it_is_recorded_and_python_does_not_run_again() -> None:
    toy, mode = Toy(), new_mode()
    before = toy.x.clone()

    def call(cut: Cut) -> Tensor:
        toy.cut_runs += 1
        return add_rms_norm(toy.x, toy.x, toy.weight, 1e-5)

    mode.capture(KEY, call)
    assert torch.equal(toy.x, before)
    runs = toy.cut_runs
    mode.run(KEY, call)
    assert torch.equal(toy.x, before + before)
    assert toy.cut_runs == runs


def test_memory_that_dies_is_used_again_within_and_across_lists() -> None:
    toy, mode = Toy(), new_mode()

    def call_of(depth: int) -> Call:
        def call(cut: Cut) -> Tensor:
            hidden = toy.x
            for _ in range(depth):
                hidden = rms_norm(hidden, toy.weight, 1e-5)
            return hidden

        return call

    first = mode.capture(GraphKey(Kind.DECODE, T, T), call_of(4)).memory_bytes
    second = mode.capture(GraphKey(Kind.DECODE, T, T, kv_class=1), call_of(40)).memory_bytes
    assert first <= 2 * 512
    assert second == 0


def test_what_lies_outside_lives_as_long_as_the_list() -> None:
    mode = new_mode()

    outside = {"x": values(0), "weight": values(1, HIDDEN)}

    def call(cut: Cut) -> Tensor:
        return rms_norm(outside["x"] + 2, outside["weight"], 1e-5)

    mode.capture(KEY, call)
    expected = call(in_place)
    weights = weakref.ref(outside["weight"])
    outside.clear()
    gc.collect()
    assert weights() is not None
    assert torch.equal(mode.run(KEY, call), expected)
    mode.close()
    gc.collect()
    assert weights() is None


def forbidden_read(x: Tensor) -> Tensor:
    return x * float(x[0, 0])


def forbidden_mask(x: Tensor) -> Tensor:
    return x + x[x > 0].sum()


class NoArgs(ctypes.Structure):
    _fields_ = ()


def other_threads(x: Tensor) -> Tensor:
    launch(NativeKernel("two", 1), NoArgs(), (x,), torch.get_num_threads() + 1)
    return x


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (forbidden_read, "Tensor.__float__ inside"),
        (forbidden_mask, "boolean mask"),
        (other_threads, "two is to run with"),
    ],
)
def test_what_cannot_be_repeated_is_refused(body: Callable[[Tensor], Tensor], message: str) -> None:
    x = values(0)
    with pytest.raises(GraphError, match=message):
        new_mode().capture(KEY, lambda cut: body(x))


def test_a_tensor_that_outlives_the_recording_is_refused() -> None:
    toy, kept = Toy(), []

    def call(cut: Cut) -> Tensor:
        kept.append(rms_norm(toy.x, toy.weight, 1e-5))
        return kept[-1]

    with pytest.raises(GraphError, match="still held"):
        new_mode().capture(KEY, call)


def test_it_pads_nothing_unless_sizes_are_given() -> None:
    recorded, eager = load_mode("recorded"), load_mode("eager")

    def padded(**changes: object) -> list[int]:
        dispatcher = Dispatcher(
            recorded, eager, RAGGED, max_num_seqs=20, max_num_batched_tokens=64, **changes
        )
        return [dispatcher.dispatch(n, n, 1).num_tokens for n in (1, 3, 17, 20)]

    assert padded() == [1, 3, 17, 20]
    assert padded(sizes=[4, 20]) == [1, 4, 20, 20]


def test_it_is_captured_at_its_fifth_use_and_a_failure_leaves_the_step_eager() -> None:
    toy = Toy()
    graphs = GraphSet(
        *("recorded", "eager", RAGGED, CPU),
        max_num_seqs=8,
        max_num_batched_tokens=8,
        max_model_len=8,
    )
    assert graphs.capture(lambda key: pytest.fail("captured before its use")).records == []
    key = graphs.dispatch(T, T, 1)
    assert graphs.captures_at_use(key) is True
    for seed in range(10):
        toy.x.copy_(values(seed))
        assert torch.equal(graphs.run(key, toy), toy(in_place))
        assert [record.num_tokens for record in graphs.report.records] == [T] * (seed >= 4)
    other = graphs.dispatch(2, 2, 1)
    x = values(0)[:2]
    for _ in range(9):
        assert torch.equal(graphs.run(other, lambda cut: forbidden_read(x)), forbidden_read(x))
    assert graphs.stats().eager_reasons["capture failed"] >= 1


def test_auto_takes_it_for_decodes_on_the_cpu() -> None:
    assert choose_mode("auto", Case.DECODE, RAGGED, CPU).name == "recorded"
    assert choose_mode("auto", Case.DECODE, NONE, CPU).name == "eager"
    assert choose_mode("auto", Case.MIXED, RAGGED, CPU).name == "eager"
    bucketed = Support(True, graph=GraphSupport.RAGGED, bucketed_kv=True)
    assert choose_mode("auto", Case.DECODE, bucketed, CPU).name == "eager"
    with pytest.raises(GraphError, match="the device is cuda"):
        choose_mode("recorded", Case.DECODE, RAGGED, torch.device("cuda"))
