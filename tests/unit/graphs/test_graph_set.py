"""Modes together: capture, lazy capture, checks, counts, report."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from rich.console import Console
from torch import Tensor

from attention_backends import GraphSupport, Support, compiler_problem
from graphs import GraphError, GraphKey, GraphOptions, GraphSet, Kind, run_in_place
from graphs._capture.report import MIB
from graphs._options import COMPARE_TOLERANCE
from tests.unit.graphs.driving import (
    BUDGET,
    CPU,
    MAX_SEQS,
    RAGGED,
    DiffersError,
    Requests,
    capture_all,
    graph_set,
    run_step,
)
from tests.unit.graphs.toy import ToyRunner


@pytest.fixture
def runner() -> ToyRunner:
    return ToyRunner(BUDGET)


def test_eager_and_padded_eager_capture_nothing(runner: ToyRunner) -> None:
    for mode in ("eager", "padded_eager"):
        graphs = graph_set(runner, mode, mode)
        capture_all(graphs, runner)
        assert graphs.report.records == []
        assert graphs.estimate_bytes(lambda key: runner.call(key)) == 0
        graphs.close()


def test_auto_is_resolved(runner: ToyRunner) -> None:
    decode = "eager" if compiler_problem() else "recorded"
    assert graph_set(runner, "auto", "auto").modes == (decode, "eager")


def test_a_mode_that_cannot_serve_is_refused(runner: ToyRunner) -> None:
    with pytest.raises(GraphError, match=r"graphs\.decode: full cannot be used: .* device is cpu"):
        graph_set(runner, "full", "eager")
    with pytest.raises(GraphError, match=r"graphs\.mixed: no graph mode|no graph mode 'ful'"):
        graph_set(runner, "eager", "ful")


def test_two_modes_of_one_kind_are_refused() -> None:
    cuda = torch.device("cuda", 0)
    with pytest.raises(GraphError, match="both give ragged graphs"):
        GraphSet(
            "emulated_ragged",
            "ragged",
            RAGGED,
            cuda,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=16,
        )


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(GraphError, match=r"graphs\.sizes: -1"):
        GraphSet(
            "padded_eager",
            "padded_eager",
            RAGGED,
            CPU,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=16,
            sizes=[4, -1],
        )


def test_capture_is_largest_first_and_reported(
    runner: ToyRunner, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = graph_set(runner, "emulated", "emulated")
    with caplog.at_level(logging.INFO, "graphs"):
        capture_all(graphs, runner)
    records = graphs.report.records
    assert [(r.kind, r.num_tokens) for r in records] == [
        ("segmented", 40),
        ("segmented", 32),
        ("segmented", 16),
        ("decode", 6),
        ("decode", 4),
        ("decode", 2),
        ("decode", 1),
    ]
    assert "captured 7 graphs" in caplog.text
    assert all(record.seconds > 0 for record in records)
    assert records[0].memory_bytes > 0
    assert sum(r.memory_bytes for r in records[1:3]) == 0, "smaller buckets reuse the pool"


def test_the_report_as_json_and_as_a_table(runner: ToyRunner) -> None:
    graphs = graph_set(runner, "emulated", "emulated_ragged")
    capture_all(graphs, runner)
    report = graphs.report
    read = json.loads(json.dumps(report.as_dict()))
    assert read["memory_bytes"] == sum(b["memory_bytes"] for b in read["buckets"])
    assert read["buckets"][0]["num_reqs"] == MAX_SEQS + 1
    assert "kv_blocks" not in {*read, *read["buckets"][0]}
    costs = json.loads(json.dumps(report.as_dict(block_bytes=512)))
    assert costs["kv_blocks"] == report.memory_bytes // 512 > 0
    assert sum(b["kv_blocks"] for b in costs["buckets"]) == costs["kv_blocks"]
    assert (
        report.as_dict(1024)["buckets"][0]["kv_blocks"] == read["buckets"][0]["memory_bytes"] / 1024
    )
    assert report.kv_blocks(block_bytes=report.memory_bytes) == 1
    assert report.kv_blocks(block_bytes=report.memory_bytes - 1) == 2
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report.table(), report.table(block_bytes=512))
    assert "ragged" in capture.get()
    assert f"{report.memory_bytes / MIB:.1f}" in capture.get()
    assert capture.get().count("KV blocks") == 1


def test_progress_sees_every_key(runner: ToyRunner) -> None:
    graphs = graph_set(runner, "emulated", "emulated")
    seen: list[GraphKey] = []

    def progress(keys):
        for key in keys:
            seen.append(key)
            yield key

    def make_call(key: GraphKey):
        runner.fill_dummy(key.num_tokens)
        return runner.call(key)

    graphs.capture(make_call, progress)
    assert seen == graphs.keys_to_capture()


def test_the_estimate_holds(runner: ToyRunner) -> None:
    graphs = graph_set(runner, "emulated", "emulated")

    def make_call(key: GraphKey):
        runner.fill_dummy(key.num_tokens)
        return runner.call(key)

    estimate = graphs.estimate_bytes(make_call)
    assert graphs.report.records == []
    graphs.capture(make_call)
    assert graphs.report.memory_bytes <= estimate <= graphs.report.memory_bytes + 7 * MIB
    run_step(graphs, runner, Requests(1).step(3, decode=True))


def test_what_was_never_captured_is_an_error(runner: ToyRunner) -> None:
    graphs = graph_set(runner, "emulated", "emulated")
    with pytest.raises(GraphError, match="was not captured by emulated; captured: none"):
        run_step(graphs, runner, Requests(1).step(3, decode=True))


def test_lazy_capture_at_the_kth_use(runner: ToyRunner) -> None:
    graphs = graph_set(runner, "emulated", "emulated", options=GraphOptions(lazy_after=3))
    capture_all(graphs, runner)
    assert graphs.report.records == []
    requests = Requests(1)
    for _ in range(2):
        run_step(graphs, runner, requests.step(3, decode=True))
    assert graphs.stats().eager_reasons == {"not captured yet": 2}
    run_step(graphs, runner, requests.step(4, decode=True))
    assert [record.num_tokens for record in graphs.report.records] == [4]
    for _ in range(3):
        run_step(graphs, runner, requests.step(3, decode=True))
    assert graphs.stats().eager_reasons == {"not captured yet": 2}
    assert len(graphs.report.records) == 1


def test_a_lazy_capture_that_fails_runs_in_place_for_good(
    runner: ToyRunner, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = graph_set(runner, "emulated", "emulated", options=GraphOptions(lazy_after=1))
    key = graphs.dispatch(4, 4, 1, 1)
    runner.fill_dummy(4)

    def call(cut) -> Tensor:
        hidden = runner.call(key)(cut)
        return hidden * hidden.sum().item()

    for count in (1, 2):
        hidden = graphs.run(key, call)
        assert torch.equal(hidden, call(run_in_place))
        assert graphs.stats().eager_reasons == {"capture failed": count}
    assert caplog.text.count("stays without a graph") == 1


def test_hooks_see_every_step(runner: ToyRunner) -> None:
    seen: list[tuple[str, Kind]] = []
    options = GraphOptions(
        before_run=lambda key: seen.append(("before", key.kind)),
        after_run=lambda key, hidden: seen.append((str(len(hidden)), key.kind)),
    )
    graphs = graph_set(runner, "emulated", "eager", options=options)
    capture_all(graphs, runner)
    run_step(graphs, runner, Requests(1).step(3, decode=True))
    run_step(graphs, runner, Requests(1).step(9, decode=False))
    assert seen == [
        ("before", Kind.DECODE),
        ("4", Kind.DECODE),
        ("before", Kind.EAGER),
        ("9", Kind.EAGER),
    ]


def test_a_canary_hook_can_poison_padding(runner: ToyRunner) -> None:
    """NaN in the trash block reaches no real row, and real rows only where padding is broken."""
    options = GraphOptions(before_run=lambda key: runner.cache[:, 1].fill_(float("nan")))
    graphs = graph_set(runner, "emulated", "emulated_ragged", options=options)
    capture_all(graphs, runner)
    for pieces in Requests(2).walk(20):
        run_step(graphs, runner, pieces)
    pieces = [p._replace(block=1) for p in Requests(3).step(1, decode=True)]
    with pytest.raises(DiffersError):
        run_step(graphs, runner, pieces)


def test_comparison_with_eager_allows_the_tolerance(
    runner: ToyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = GraphOptions(compare_every=2)
    default = COMPARE_TOLERANCE[torch.float64]
    for tolerance, is_refused in ((0.0, True), (default, True), (9.0, False)):
        monkeypatch.setitem(COMPARE_TOLERANCE, torch.float64, tolerance)
        graphs = graph_set(runner, "emulated", "emulated", options=options)
        key = graphs.dispatch(4, 4, 1, 1)
        runner.fill_dummy(4)
        offset = [0.0]

        def call(cut, key=key, offset=offset) -> Tensor:
            return runner.call(key)(cut) + offset[0]

        graphs._modes[key.kind].capture(key, call)
        offset[0] = 0.05
        graphs.run(key, call)  # the first of two is not compared
        if is_refused:
            with pytest.raises(GraphError, match=r"in 4 of 4 rows, the first is 0; largest "):
                graphs.run(key, call)
        else:
            graphs.run(key, call)


def test_decode_and_mixed_of_one_recorder_share_a_pool(runner: ToyRunner) -> None:
    graphs = graph_set(runner, "emulated", "emulated_ragged")
    decode, mixed = graphs._modes[Kind.DECODE], graphs._modes[Kind.RAGGED]
    assert decode is not mixed
    assert decode._pool is mixed._pool


def test_sets_do_not_share(runner: ToyRunner) -> None:
    first, second = (graph_set(runner, "emulated", "emulated") for _ in range(2))
    capture_all(first, runner)
    capture_all(second, runner)
    first.close()
    run_step(second, runner, Requests(1).step(3, decode=True))
    second.close()
    with pytest.raises(GraphError, match="was not captured"):
        run_step(second, runner, Requests(1).step(3, decode=True))


def test_support_none_breaks_decode_at_cuts(runner: ToyRunner) -> None:
    none = Support(ok=True, graph=GraphSupport.NONE)
    graphs = graph_set(runner, "emulated", "emulated", none)
    key = graphs.dispatch(4, 4, 1, 1)
    factor = [2.0]

    def call(cut) -> Tensor:
        hidden = runner.embedding[runner.ids[:4]]
        out = torch.empty_like(hidden)
        cut(lambda hidden, out: torch.mul(hidden, factor[0], out=out), hidden, out)
        return out * 1

    graphs._modes[key.kind].capture(key, call)
    factor[0] = 3.0
    assert torch.equal(graphs.run(key, call), runner.embedding[runner.ids[:4]] * 3)
