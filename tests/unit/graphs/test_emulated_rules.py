"""What a capture forbids is refused with the reason; what it allows is replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from attention_backends import Support
from graphs import Cut, GraphError, GraphKey, Kind, run_in_place
from graphs._capture.pool import CapturedGraph, CapturePool, Resources
from graphs._recorders.emulated import EmulatedRecorder

CPU = torch.device("cpu")
T, H = 4, 8
Body = Callable[[Tensor, Cut], Tensor]


class Bench:
    """One static input, and a pool to capture bodies into."""

    def __init__(self, breaks: bool = True) -> None:
        self.input = torch.randn(T, H)
        self.breaks = breaks
        resources = Resources(Support(ok=True), CPU, max_tokens=T)
        self.pool = CapturePool(EmulatedRecorder(CPU), resources)

    def capture(self, body: Body) -> CapturedGraph:
        key = GraphKey(Kind.SEGMENTED, T, 0)
        return self.pool.capture(key, lambda cut: body(self.input, cut), breaks=self.breaks)

    def assert_replays(self, body: Body) -> None:
        """Replays equal eager runs on new inputs."""
        graph = self.capture(body)
        for seed in range(3):
            self.input.copy_(torch.randn(T, H, generator=torch.Generator().manual_seed(seed)))
            replayed = self.pool.replay(graph).clone()
            assert torch.equal(replayed, body(self.input, run_in_place))


@pytest.fixture
def bench() -> Bench:
    return Bench()


FORBIDDEN: list[tuple[str, Callable[[Tensor], object], str]] = [
    ("item", lambda x: x * x.sum().item(), "Tensor.item"),
    ("bool", lambda x: x if x.sum() > 0 else -x, "Tensor.__bool__"),
    ("int", lambda x: x * int(x.sum()), "Tensor.__int__"),
    ("float", lambda x: x * float(x.sum()), "Tensor.__float__"),
    ("index", lambda x: range(T * H)[x.argmax()], "Tensor.__index__"),
    ("cpu", lambda x: x.cpu(), "Tensor.cpu"),
    ("tolist", lambda x: x.tolist(), "Tensor.tolist"),
    ("numpy", lambda x: x.numpy(), "Tensor.numpy"),
    ("array", lambda x: np.asarray(x), "Tensor.__array__"),
    ("equal", lambda x: torch.equal(x, x), "aten::equal"),
    ("tensor", lambda x: x + torch.tensor([1.0] * H), "host data"),
    ("as_tensor", lambda x: x + torch.as_tensor([1.0] * H), "host data"),
    ("from_numpy", lambda x: x + torch.from_numpy(np.ones(H, np.float32)), "host data"),
    ("mask", lambda x: x[x > 0], "boolean mask"),
    ("mask_put", lambda x: x.index_put((x[:, 0] == x[:, 0],), torch.ones(T, H)), "boolean mask"),
    ("nonzero", lambda x: x.nonzero(), "aten::nonzero"),
    ("unique", lambda x: x.unique(), "unique"),
    ("masked_select", lambda x: x.masked_select(x > 0), "aten::masked_select"),
    ("rand", lambda x: x + torch.rand(T, H), "aten::rand"),
    ("normal_", lambda x: torch.empty_like(x).normal_(), "aten::normal_"),
    ("multinomial", lambda x: torch.multinomial(x.softmax(1), 1), "aten::multinomial"),
    ("data_ptr", lambda x: x.data_ptr(), "wrap_torch_function"),
    ("other_device", lambda x: torch.empty(3, device="meta"), "makes a tensor on meta"),
]


@pytest.mark.parametrize(
    ("body", "named"), [f[1:] for f in FORBIDDEN], ids=[f[0] for f in FORBIDDEN]
)
def test_forbidden(bench: Bench, body: Callable[[Tensor], object], named: str) -> None:
    def forward(x: Tensor, cut: Cut) -> Tensor:
        body(x)
        return x * 1

    with pytest.raises(GraphError, match=r"capture of segmented\(4 tokens\) failed") as caught:
        bench.capture(forward)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("body", "named"), [f[1:] for f in FORBIDDEN], ids=[f[0] for f in FORBIDDEN]
)
def test_forbidden_things_are_allowed_between_segments(
    bench: Bench, body: Callable[[Tensor], object], named: str
) -> None:
    def eager(x: Tensor, out: Tensor) -> None:
        body(x)
        out.copy_(x)

    def forward(x: Tensor, cut: Cut) -> Tensor:
        x = x * 2
        out = torch.empty_like(x)
        cut(eager, x, out)
        return out + 1

    bench.assert_replays(forward)


ALLOWED: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("views", lambda x: x.view(2, -1).t().reshape(T, H).unsqueeze(0)[0].narrow(0, 0, T)),
    ("in_place", lambda x: x.clone().add_(1).mul_(x)),
    ("out", lambda x: torch.mul(x, x, out=torch.empty_like(x))),
    ("several_results", lambda x: torch.cat(x.sort(1).values.chunk(2, 1), 1) + x.topk(1).values),
    ("index", lambda x: x[x.argsort(0)[:, 0]]),
    ("masked_fill", lambda x: x.masked_fill(x > 0, 3.0)),
    ("where", lambda x: torch.where(x > 0, x, 0.5)),
    ("one_mask_one_value", lambda x: x.clone().index_put_((x > 0,), torch.ones(()).add(1))),
    ("dtypes", lambda x: x.bfloat16().float() + x.double().float() + (x > 0)),
    ("factories", lambda x: x + torch.arange(H) + torch.full((T, 1), 2.0) + torch.zeros(H)),
    ("norm", lambda x: torch.nn.functional.rms_norm(x, (H,), torch.ones(H))),
    ("empty", lambda x: torch.cat([x, torch.empty(0, H)])),
    ("expand", lambda x: x[:1].expand(T, H) + x),
    ("repeat", lambda x: x[:2].repeat_interleave(torch.full((2,), 2), 0, output_size=T)),
    (
        "attention",
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    ),
]  # fmt: skip


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("body", [a[1] for a in ALLOWED], ids=[a[0] for a in ALLOWED])
def test_allowed(breaks: bool, body: Callable[[Tensor], Tensor]) -> None:
    Bench(breaks).assert_replays(lambda x, cut: body(x) * 1)


def test_ints_are_frozen(bench: Bench) -> None:
    factor = [2]
    graph = bench.capture(lambda x, cut: x * factor[0])
    factor[0] = 3
    assert torch.equal(bench.pool.replay(graph), bench.input * 2)


def test_python_does_not_run_again(bench: Bench) -> None:
    runs = []
    graph = bench.capture(lambda x, cut: (runs.append(1), x * 1)[1])
    assert len(runs) == 3  # two warm-ups and the capture
    bench.pool.replay(graph)
    assert len(runs) == 3


def test_capture_leaves_no_result_behind(bench: Bench) -> None:
    """A real capture computes nothing: only a replay may be relied on."""
    bench.capture(lambda x, cut: x * 1)
    assert bench.pool._output is not None
    assert bench.pool._output.isnan().all()


def test_memory_that_nothing_wrote_is_poison(bench: Bench) -> None:
    graph = bench.capture(lambda x, cut: torch.empty_like(x))
    assert bench.pool.replay(graph).isnan().all()


def test_values_die_at_the_next_replay_of_any_graph(bench: Bench) -> None:
    bridges: list[tuple[Tensor, Tensor]] = []
    is_captured = False

    def keep(x: Tensor) -> None:
        if is_captured:
            bridges.append((x, x.clone()))

    def forward(x: Tensor, cut: Cut) -> Tensor:
        cut(keep, x + 1)
        return x * 2

    first, second = bench.capture(forward), bench.capture(lambda x, cut: x * 3)
    is_captured = True
    bench.pool.replay(first)
    ((bridge, copy),) = bridges
    assert torch.equal(copy, bench.input + 1)
    left = bridge.clone()
    bench.pool.replay(second)
    assert not torch.equal(bridge, left)


def test_dead_memory_is_reused_within_and_across_graphs(bench: Bench) -> None:
    def deep(x: Tensor, cut: Cut) -> Tensor:
        for _ in range(50):
            x = x + 1
        return x

    bench.assert_replays(deep)
    used = bench.pool.memory_bytes()
    assert used < 5 * 512
    bench.assert_replays(deep)
    assert bench.pool.memory_bytes() == used


def test_a_tensor_that_outlives_the_capture_is_refused(bench: Bench) -> None:
    cache: dict[str, Tensor] = {}

    def forward(x: Tensor, cut: Cut) -> Tensor:
        cache["table"] = x * 2
        return x * 1

    with pytest.raises(GraphError, match=r"still held after it \(results of aten::mul\)"):
        bench.capture(forward)


def test_a_bridge_by_closure_is_refused(bench: Bench) -> None:
    def forward(x: Tensor, cut: Cut) -> Tensor:
        q = x * 2
        cut(lambda: q.add_(1))
        return q * 1

    with pytest.raises(GraphError, match="give tensors that an eager part needs to cut"):
        bench.capture(forward)


def test_a_bridge_by_argument_owns_nothing(bench: Bench) -> None:
    def forward(x: Tensor, cut: Cut) -> Tensor:
        for _ in range(20):
            x = x * 1.5
            cut(torch.Tensor.add_, x, 1)
        return x * 1

    bench.assert_replays(forward)
    assert bench.pool.memory_bytes() < 5 * 512


def test_a_freed_buffer_of_a_cut_is_found(bench: Bench) -> None:
    out = [torch.zeros(T, H)]

    def forward(x: Tensor, cut: Cut) -> Tensor:
        cut(torch.Tensor.copy_, out[0], x)
        return out[0] + 1

    graph = bench.capture(forward)
    bench.pool.replay(graph)
    out[0] = torch.zeros(T, H)
    with pytest.raises(GraphError, match="has been freed"):
        bench.pool.replay(graph)


def test_a_resized_buffer_is_found(bench: Bench) -> None:
    buffer = torch.ones(2)
    graph = bench.capture(lambda x, cut: x * buffer[1])
    buffer.resize_(1 << 20)
    with pytest.raises(GraphError, match="has moved: a buffer was resized"):
        bench.pool.replay(graph)


@wrap_torch_function(lambda x, out, factor: (x, out))
def launch(x: Tensor, out: Tensor, factor: float) -> None:
    """A kernel that torch does not see."""
    np.multiply(x.numpy(), factor, out=out.numpy())


@wrap_torch_function(lambda x: (x,))
def launch_and_allocate(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 3)


@wrap_torch_function(lambda x, plan: (x,))
def launch_with_plan(x: Tensor, plan: object) -> None:
    pass


def test_a_launch_of_ours_is_one_op(bench: Bench) -> None:
    def forward(x: Tensor, cut: Cut) -> Tensor:
        out = torch.empty_like(x)
        launch(x * 2, out, factor=5.0)
        return launch_and_allocate(out) + 1

    bench.assert_replays(forward)


def test_a_launch_takes_nothing_that_could_change(bench: Bench) -> None:
    def forward(x: Tensor, cut: Cut) -> Tensor:
        launch_with_plan(x, object())
        return x * 1

    with pytest.raises(
        GraphError, match="launch_with_plan inside a captured region is given a obj"
    ):
        bench.capture(forward)


def test_a_hidden_launch_is_found(bench: Bench) -> None:
    """Through `numpy` it is refused; this one hides even that, and its result stays poison."""

    def forward(x: Tensor, cut: Cut) -> Tensor:
        out = torch.empty_like(x)
        with torch._C.DisableTorchFunction():
            out.numpy()[:] = 1.0
        return out * 1

    graph = bench.capture(forward)
    assert bench.pool.replay(graph).isnan().all()


def test_the_pool_works_after_a_failed_capture(bench: Bench) -> None:
    with pytest.raises(GraphError):
        bench.capture(lambda x, cut: x * x.sum().item())
    bench.assert_replays(lambda x, cut: x * 2)
    assert gc.isenabled()


def test_capture_runs_without_the_garbage_collector(bench: Bench) -> None:
    was_enabled = []
    bench.capture(lambda x, cut: (was_enabled.append(gc.isenabled()), x * 1)[1])
    assert was_enabled == [False] * 3
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x, cut: x[:2] * 1, "gave 2 rows for 4 tokens"),
        (lambda x, cut: x[:, :3] * 1, r"the output buffer takes \(4, 8\)"),
        (lambda x, cut: x.double(), "float64, the output buffer takes"),
    ],
)
def test_the_output_must_fit(bench: Bench, body: Body, message: str) -> None:
    bench.capture(lambda x, cut: x * 1)
    with pytest.raises(GraphError, match=message):
        bench.capture(body)


def test_out_of_memory_names_the_bucket(bench: Bench) -> None:
    def forward(x: Tensor, cut: Cut) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    with pytest.raises(
        GraphError, match=r"memory while capturing segmented\(4 tokens\)\. .* 20 GiB"
    ):
        bench.capture(forward)


def test_close_gives_everything_back(bench: Bench) -> None:
    bench.capture(lambda x, cut: x * 1)
    bench.pool.close()
    assert bench.pool.memory_bytes() == 0
    bench.pool.close()
