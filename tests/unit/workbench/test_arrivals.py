import numpy as np
import pytest

from runtime.errors import ConfigError
from runtime.workbench.arrivals import Arrivals


def times(arrivals, count, seed=0):
    return arrivals.times(count, np.random.default_rng(seed))


def test_infinite_is_all_at_once():
    assert times(Arrivals(), 3).tolist() == [0, 0, 0]


def test_constant_gaps():
    assert times(Arrivals("constant", 4.0), 3).tolist() == [0, 0.25, 0.5]


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
def test_the_mean_gap_is_that_of_the_rate_whatever_the_seed(kind):
    for seed in range(3):
        found = times(Arrivals(kind, 5.0, 0.3), 101, seed)
        assert found[0] == 0
        assert found[-1] == pytest.approx(20.0)
        assert (np.diff(found) >= 0).all()
    assert times(Arrivals(kind, 5.0), 9, 1).tolist() != times(Arrivals(kind, 5.0), 9, 2).tolist()
    assert times(Arrivals(kind, 5.0), 9, 1).tolist() == times(Arrivals(kind, 5.0), 9, 1).tolist()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness):
    gaps = np.diff(times(Arrivals("gamma", 10.0, burstiness), 50_000))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_takes_no_burstiness():
    assert (
        times(Arrivals("poisson", 2.0, 0.1), 20).tolist()
        == times(Arrivals("gamma", 2.0, 1.0), 20).tolist()
    )


def test_a_trace_begins_at_zero_and_must_be_long_enough():
    trace = Arrivals("trace", trace_s=(5.0, 5.5, 9.0))
    assert times(trace, 2).tolist() == [0, 0.5]
    with pytest.raises(ConfigError, match="3 arrivals, and 4 requests"):
        times(trace, 4)


@pytest.mark.parametrize("kind", ["infinite", "poisson", "gamma", "constant", "trace"])
@pytest.mark.parametrize("count", [0, 1])
def test_few_requests(kind, count):
    assert times(Arrivals(kind, 2.0, trace_s=(3.0,)), count).tolist() == [0.0] * count
