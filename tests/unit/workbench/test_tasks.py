import numpy as np
import pytest

from runtime.errors import ConfigError
from runtime.workbench.arrivals import Arrivals
from runtime.workbench.datasets import Lengths, RandomDataset
from runtime.workbench.session import Bench
from runtime.workbench.tasks import BatchTask, LoadTask
from tests.unit.workbench.fakes import VirtualClock, VirtualRuntime

DATASET = RandomDataset(Lengths(2, 5), Lengths(3, 3), {})
VOCABULARY = range(20, 90)


@pytest.fixture
def runtime():
    return VirtualRuntime(VirtualClock(), step_s=0.5)


def test_a_load_is_measured_after_its_warm_up(runtime):
    task = LoadTask(DATASET, 3, Arrivals("constant", 2.0), seed=1, num_warmups=2)
    bench = Bench(runtime, clock=runtime.clock)
    run = task.run(bench, VOCABULARY)
    assert len(runtime.added) == 5
    assert [r.due_s for r in run.records] == [0.0, 0.5, 1.0]
    assert runtime.num_resets == 2, "no prefix of the warm-up is found"
    assert bench.engine_counts()["steps"] == runtime.num_steps - 3
    assert bench.engine_counts()["num_blocks"] == 9
    warm, measured = runtime.added[:2], runtime.added[2:]
    assert not {tuple(a["token_ids"]) for a in warm} & {tuple(a["token_ids"]) for a in measured}


def test_prompts_and_arrivals_have_seeds_of_their_own(runtime):
    def ran(**changes):
        fields = {"num_requests": 6, "arrivals": Arrivals("poisson", 1.0), "seed": 3, **changes}
        task = LoadTask(DATASET, **fields)
        fresh = VirtualRuntime(VirtualClock(), 0.5)
        run = task.run(Bench(fresh, clock=fresh.clock), VOCABULARY)
        prompts = [a["token_ids"] for a in fresh.added[-6:]]
        return prompts, [r.due_s for r in run.records]

    assert ran() == ran(num_warmups=3)
    assert ran()[0] == ran(arrivals=Arrivals())[0]
    assert ran()[0] != ran(seed=4)[0]
    assert ran()[1] != ran(seed=4)[1]


def test_settings_and_figures_of_a_load(runtime):
    task = LoadTask(DATASET, 2, Arrivals(), 0, max_concurrency=1, slos={"ttft": 600.0})
    assert task.settings()["request_rate"] == "inf"
    assert task.settings()["goodput_slos_ms"] == {"ttft": 600.0}
    figures = task.figures(task.run(Bench(runtime, clock=runtime.clock), VOCABULARY), [50])
    assert figures["mean_queue_time_ms"] == pytest.approx(750)
    assert figures["request_goodput"] == pytest.approx(2 / 3)
    assert LoadTask(DATASET, 1, Arrivals("constant", 2.0), 0).settings()["request_rate"] == 2.0


def test_arrivals_that_do_not_suffice_are_told_before_anything_runs():
    with pytest.raises(ConfigError, match="1 arrivals, and 2 requests"):
        LoadTask(DATASET, 2, Arrivals("trace", trace_s=(0.0,)), 0).due_s()


def test_batches_come_one_after_the_other(runtime):
    task = BatchTask(DATASET, batch_size=2, num_batches=3, num_warmup_batches=1, seed=0)
    run = task.run(Bench(runtime, clock=runtime.clock), VOCABULARY)
    assert [r.sent_s for r in run.records] == [0, 0, 1.5, 1.5, 3, 3]
    assert len(runtime.added) == 8
    assert runtime.most_live == 2
    assert len({tuple(a["token_ids"]) for a in runtime.added}) == 8, "each batch is a new one"
    figures = task.figures(run, [50])
    assert figures["latencies"] == [1.5] * 3
    assert figures["avg_latency"] == 1.5
    assert figures["percentiles"]["99"] == 1.5
    assert figures["completed"] == 6
    assert np.isclose(figures["mean_ttft_ms"], 500)


def test_a_stop_ends_the_batches(runtime):
    bench = Bench(runtime, clock=runtime.clock, is_stopped=lambda: runtime.num_steps >= 4)
    run = BatchTask(DATASET, 2, 3, 0, 0).run(bench, VOCABULARY)
    assert not run.is_whole
    assert [r.index for r in run.records] == [0, 1]
