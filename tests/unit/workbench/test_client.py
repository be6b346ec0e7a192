"""The client on a virtual clock, where every time is known."""

import pytest

from runtime.config import RequestConfig
from runtime.errors import StepError
from runtime.workbench.client import run_load
from tests.unit.workbench.fakes import VirtualClock, VirtualRuntime


def requests(*max_tokens, prompt=(1, 2, 3)):
    return [RequestConfig(token_ids=list(prompt), sampling={"max_tokens": n}) for n in max_tokens]


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def runtime(clock):
    return VirtualRuntime(clock, step_s=1.0)


class Watcher:
    def __init__(self):
        self.steps, self.ends = [], []

    def on_step(self, progress):
        self.steps.append(progress)

    def on_end(self, record):
        self.ends.append(record)


def test_times_of_one_request(runtime, clock):
    run = run_load(runtime, requests(3), [0.0], clock=clock)
    (record,) = run.records
    assert (record.ttft_s, record.itl_s, record.latency_s) == (1.0, (1.0, 1.0), 3.0)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.text) == (3, 3, "xxx")
    assert record.tpot_s == 1.0
    assert record.token_times_s.tolist() == [1.0, 2.0, 3.0]
    assert (run.duration_s, run.is_whole) == (3.0, True)


def test_a_request_that_comes_during_a_step_counts_from_when_it_came(runtime, clock):
    run = run_load(runtime, requests(2, 1), [0.0, 0.25], clock=clock)
    second = run.records[1]
    assert second.sent_s == 0.25
    assert second.ttft_s == 1.75, "0.75 s of the first step, and the second step"
    assert second.queue_s == 0
    assert [a["arrival_s"] for a in runtime.added] == [100.0, 100.25]


def test_an_idle_client_sleeps_until_the_next_request(runtime, clock):
    run = run_load(runtime, requests(1, 1), [0.0, 5.0], clock=clock)
    assert clock.slept_s == pytest.approx(4.0)
    assert run.records[1].ttft_s == pytest.approx(1.0)
    assert runtime.num_steps == 2


def test_max_concurrency_holds_requests_back_and_tells_how_long(runtime, clock):
    due_s = [0.0, 0.0, 0.0, 4.5]
    run = run_load(runtime, requests(2, 3, 1, 1), due_s, max_concurrency=2, clock=clock)
    assert runtime.most_live == 2
    assert [r.sent_s for r in run.records] == [0.0, 0.0, 2.0, 4.5]
    assert [r.queue_s for r in run.records] == [0.0, 0.0, 2.0, 0.0]
    assert run.records[2].latency_s == 1.0, "without the wait"
    assert run.records[2].end_s == 3.0


def test_refused_and_failed_requests_harm_no_other(runtime, clock):
    load = [*requests(2), *requests(1, prompt=[13]), *requests(5, prompt=[7])]
    watcher = Watcher()
    run = run_load(runtime, load, [0.0] * 3, max_concurrency=1, watcher=watcher, clock=clock)
    assert [r.error for r in run.records] == [None, "prompt: is unlucky", "went wrong"]
    assert [r.index for r in run.completed] == [0]
    assert [r.index for r in watcher.ends] == [0, 1, 2]
    assert [s.num_output_tokens for s in watcher.steps] == [1, 2, 3]
    assert [s.num_done for s in watcher.steps] == [0, 1, 3]
    assert watcher.steps[0].num_running == 1


def test_a_stop_aborts_what_runs(runtime, clock):
    stops = iter([False, False, True])
    load = requests(9, 1, 9)
    run = run_load(runtime, load, [0.0, 0.0, 50.0], is_stopped=lambda: next(stops), clock=clock)
    assert not run.is_whole
    assert [r.index for r in run.records] == [1]
    assert runtime.aborted == ["r1"]


def test_an_engine_that_forgets_a_request_is_an_error(runtime, clock):
    runtime.has_unfinished = lambda: False
    with pytest.raises(StepError, match="1 requests unfinished"):
        run_load(runtime, requests(2), [0.0], clock=clock)


def test_everything_of_a_request_is_passed_on(runtime, clock):
    request = RequestConfig(token_ids=[1], priority=3, cache_salt="s", sampling={"max_tokens": 1})
    run_load(runtime, [request], [0.0], clock=clock)
    assert runtime.added[0] == {
        "chat": None,
        "token_ids": [1],
        "params": {"max_tokens": 1},
        "priority": 3,
        "cache_salt": "s",
        "tools": None,
        "arrival_s": 100.0,
    }
