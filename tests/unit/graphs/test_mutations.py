"""Faults of a runner that must not stay hidden: broken on purpose, each one is found."""

import pytest

from graphs import GraphError, GraphOptions
from tests.unit.graphs.driving import (
    BUDGET,
    DiffersError,
    Requests,
    capture_all,
    graph_set,
    run_step,
)
from tests.unit.graphs.toy import Breaks, ToyRunner


def walk(runner: ToyRunner, mixed: str, options: GraphOptions | None = None) -> None:
    """Capture and run; break switches are read at capture and in every step."""
    graphs = graph_set(runner, "emulated", mixed, options=options)
    capture_all(graphs, runner)
    for pieces in Requests(7).walk(40):
        run_step(graphs, runner, pieces)


@pytest.fixture
def runner() -> ToyRunner:
    return ToyRunner(BUDGET)


@pytest.mark.parametrize("mixed", ["emulated", "emulated_ragged"])
def test_nothing_is_found_in_a_sound_runner(runner: ToyRunner, mixed: str) -> None:
    walk(runner, mixed)


@pytest.mark.parametrize("mixed", ["padded_eager", "emulated", "emulated_ragged"])
def test_padding_left_stale(runner: ToyRunner, mixed: str) -> None:
    runner.breaks = Breaks(padding=True)
    with pytest.raises(DiffersError):
        walk(runner, mixed)


def test_a_baked_int(runner: ToyRunner) -> None:
    runner.breaks = Breaks(baked_int=True)
    with pytest.raises(DiffersError):
        walk(runner, "emulated_ragged")


def test_a_baked_int_in_the_comparison_with_eager(runner: ToyRunner) -> None:
    runner.breaks = Breaks(baked_int=True)
    with pytest.raises(GraphError, match=r"differs from the eager forward in .* rows"):
        walk(runner, "emulated_ragged", GraphOptions(compare_every=1))


def test_a_baked_int_is_invisible_without_capture(runner: ToyRunner) -> None:
    """So the test above finds the capture, not the arithmetic."""
    runner.breaks = Breaks(baked_int=True)
    graphs = graph_set(runner, "padded_eager", "padded_eager")
    for pieces in Requests(7).walk(40):
        run_step(graphs, runner, pieces)


def test_a_stale_plan(runner: ToyRunner) -> None:
    runner.breaks = Breaks(stale_plan=True)
    with pytest.raises(DiffersError):
        walk(runner, "emulated")


def test_a_replaced_buffer(runner: ToyRunner) -> None:
    runner.breaks = Breaks(replaced_buffer=True)
    with pytest.raises(GraphError, match="has been freed: a buffer was replaced"):
        walk(runner, "emulated")


def test_a_replaced_buffer_that_something_keeps_alive(runner: ToyRunner) -> None:
    """The address check by name finds it, where the old memory still exists."""
    kept = runner.ids
    graphs = graph_set(runner, "emulated", "emulated", options=GraphOptions(check_addresses=True))
    capture_all(graphs, runner)
    runner.ids = kept.clone()
    with pytest.raises(GraphError, match="ids has moved since decode"):
        run_step(graphs, runner, Requests(8).step(2, decode=True))


def test_a_tensor_cached_at_warm_up_is_sound(runner: ToyRunner) -> None:
    runner.breaks = Breaks(cached_tensor=True)
    graphs = graph_set(runner, "emulated", "emulated", options=GraphOptions(compare_every=1))
    capture_all(graphs, runner)
    runner.fill_dummy(4)
    key = graphs.dispatch(4, 4, 1, 1)
    graphs.run(key, runner.call(key))
