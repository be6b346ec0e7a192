"""Every mode gives the exact step's rows, whatever was run before."""

import pytest
import torch

from attention_backends import GraphSupport, Support
from graphs import GraphKey, GraphOptions, Kind
from tests.unit.graphs.driving import (
    BUDGET,
    MAX_SEQS,
    RAGGED,
    Requests,
    capture_all,
    graph_set,
    run_step,
)
from tests.unit.graphs.toy import ToyRunner

NONE = Support(ok=True, graph=GraphSupport.NONE)
CASES = [
    ("eager", "eager", NONE),
    ("padded_eager", "padded_eager", NONE),
    ("emulated", "emulated", NONE),
    ("emulated", "emulated", RAGGED),
    ("emulated", "emulated_ragged", RAGGED),
    ("emulated_ragged", "emulated_ragged", RAGGED),
    ("eager", "emulated", RAGGED),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case[:2])))
def driven(request: pytest.FixtureRequest):
    decode, mixed, support = request.param
    runner = ToyRunner(BUDGET + 1)
    graphs = graph_set(
        runner, decode, mixed, support, GraphOptions(check_addresses=True, compare_every=1)
    )
    capture_all(graphs, runner)
    yield graphs, runner
    graphs.close()


def test_every_number_of_decodes(driven) -> None:
    graphs, runner = driven
    requests = Requests(1)
    for n in range(1, MAX_SEQS + 1):
        run_step(graphs, runner, requests.step(n, decode=True))


def test_every_number_of_mixed_tokens(driven) -> None:
    graphs, runner = driven
    requests = Requests(2)
    for n in range(2, BUDGET + 1):
        run_step(graphs, runner, requests.step(n, decode=False))


def test_a_random_walk(driven) -> None:
    graphs, runner = driven
    for pieces in Requests(3).walk(60):
        run_step(graphs, runner, pieces)


def test_padding_never_writes_a_real_block(driven) -> None:
    graphs, runner = driven
    requests = Requests(4)
    run_step(graphs, runner, requests.step(MAX_SEQS, decode=True))
    before = runner.cache.clone()
    pieces = requests.step(3, decode=True)
    run_step(graphs, runner, pieces)
    touched = {piece.block for piece in pieces} | {1}
    for block in range(runner.cache.shape[1]):
        if block not in touched:
            assert torch.equal(runner.cache[:, block], before[:, block])
    assert not runner.cache[:, 0].any()


def test_the_kinds_of_emulated() -> None:
    runner = ToyRunner(BUDGET)
    graphs = graph_set(runner, "emulated", "emulated_ragged")
    capture_all(graphs, runner)
    requests = Requests(5)
    assert run_step(graphs, runner, requests.step(3, decode=True)).kind is Kind.DECODE
    assert run_step(graphs, runner, requests.step(33, decode=False)).kind is Kind.RAGGED
    assert [record.num_segments for record in graphs.report.records] == [1] * 7


def test_segments_break_at_attention() -> None:
    runner = ToyRunner(BUDGET)
    graphs = graph_set(runner, "emulated", "emulated", NONE)
    capture_all(graphs, runner)
    segments = {(r.kind, r.num_segments) for r in graphs.report.records}
    assert segments == {("segmented", 3), ("decode", 1)}  # the toy's decode never cuts


def test_a_segmented_graph_serves_any_number_of_requests() -> None:
    runner = ToyRunner(BUDGET)
    graphs = graph_set(runner, "emulated", "emulated")
    capture_all(graphs, runner)
    requests = Requests(6)
    keys = {run_step(graphs, runner, requests.step(20, decode=False)) for _ in range(20)}
    assert len({key.num_reqs for key in keys}) > 1
    assert {key.graph for key in keys} == {GraphKey(Kind.SEGMENTED, 32, 0)}
