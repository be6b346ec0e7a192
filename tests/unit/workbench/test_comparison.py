import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from runtime.config import RuntimeConfig
from runtime.errors import StepgraphError
from runtime.workbench.arrivals import Arrivals
from runtime.workbench.comparison import compare, median_of, ratios
from runtime.workbench.datasets import Lengths, RandomDataset
from runtime.workbench.tasks import LoadTask
from tests.unit.workbench.fakes import VirtualClock, VirtualRuntime

TASK = LoadTask(RandomDataset(Lengths(2, 5), Lengths(3, 3), {}), 4, Arrivals("poisson", 1.0), 0)
CONFIGS = {
    "fast": RuntimeConfig(model={"path": "fast"}),
    "slow": RuntimeConfig(model={"path": "slow"}),
}


class Opener:
    """Opens runtimes whose steps take longer each time they are opened."""

    def __init__(self, is_failing=False):
        self.clock = VirtualClock()
        self.opened, self.prompts = [], []
        self.vocab_size = 8 if is_failing else 90

    @contextmanager
    def __call__(self, config):
        slowness = {"fast": 1.0, "slow": 2.0}[config.model.path]
        name = f"{config.model.path}{len(self.opened)}"
        self.opened.append(name)
        runtime = VirtualRuntime(self.clock, slowness * (1 + self.opened.index(name) // 2))
        runtime.spec = SimpleNamespace(vocab_size=self.vocab_size, eos_token_ids=(1,))
        yield runtime
        self.prompts.append([added["token_ids"] for added in runtime.added])


def test_every_configuration_does_the_same_work_in_turns():
    opener, names = Opener(), []

    @contextmanager
    def watcher(name):
        names.append(name)
        yield None

    found = compare(
        CONFIGS, TASK, opener, percentiles=[50], repeats=3, watcher=watcher, clock=opener.clock
    )
    assert opener.opened == ["fast0", "slow1", "fast2", "slow3", "fast4", "slow5"]
    assert names == ["fast", "slow"] * 3
    assert all(prompts == opener.prompts[0] for prompts in opener.prompts)
    assert list(found) == ["fast", "slow"]
    assert found["fast"].figures["p50_itl_ms"] == pytest.approx(2000), "the median of 1, 2 and 3 s"
    assert found["slow"].figures["p50_itl_ms"] == pytest.approx(4000)
    assert found["fast"].run.records[0].itl_s == pytest.approx((3.0, 3.0)), "of the last repeat"
    assert found["fast"].figures["engine"]["steps"] > 0
    json.dumps(found["fast"].figures, allow_nan=False)


def test_a_request_that_fails_is_an_error():
    """Prompts of one token id, 7, fail."""
    opener = Opener(is_failing=True)
    task = LoadTask(RandomDataset(Lengths(1, 1), Lengths(3, 3), {}), 40, Arrivals(), 0)
    with pytest.raises(StepgraphError, match=r"fast: .* requests failed; the first: went wrong"):
        compare(CONFIGS, task, opener, percentiles=[50], clock=opener.clock)
    assert opener.opened == ["fast0"]


def test_medians_reach_inside():
    found = median_of(
        [{"a": 1, "b": {"c": 5.0}, "d": None, "e": "x"}, {"a": 3, "b": {"c": 7.0}, "d": 4}]
    )
    assert found == {"a": 2.0, "b": {"c": 6.0}, "d": None, "e": "x"}
    assert median_of([{"a": 1}])["a"] == 1


def test_ratios_are_of_what_both_have():
    ours, others = {"a": 2.0, "b": 0.0, "c": None, "d": 1.0}, {"a": 5.0, "b": 1.0, "c": 1.0}
    assert dict(ratios(ours, others, ["a", "b", "c", "d"])) == {"a": 2.5}
