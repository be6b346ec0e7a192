import json

import numpy as np
import pytest

from runtime.workbench.metrics import (
    details,
    most_at_once,
    statistics,
    summarize,
    tokens_per_second,
)
from runtime.workbench.records import LoadRun, joined
from tests.unit.workbench.fakes import record

RUN = LoadRun(
    (
        record(0, sent_s=0.0, ttft_s=0.5, itl_s=(0.1, 0.3)),
        record(1, due_s=0.5, sent_s=1.0, ttft_s=1.0),
        record(2, ttft_s=None, error="no"),
    ),
    duration_s=2.0,
)
SURVEYED = (
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
)


def test_totals_and_rates_count_what_completed():
    found = summarize(RUN)
    assert [found[key] for key in SURVEYED] == [2.0, 2, 1, 20, 4, 1.0, None, 2.0, 12.0, 3.0, 1, 0.0]
    assert found["total_cached_tokens"] == 4


def test_every_metric_has_its_statistics_in_milliseconds():
    found = summarize(RUN, percentiles=[50, 99, 99.9])
    for name in ("ttft", "tpot", "itl", "e2el"):
        for column in ("mean", "median", "std", "p50", "p99", "p99.9"):
            assert f"{column}_{name}_ms" in found
    assert found["mean_ttft_ms"] == pytest.approx(750)
    assert found["p50_ttft_ms"] == pytest.approx(750)
    assert found["mean_tpot_ms"] == pytest.approx(200), "(0.9 - 0.5) / (3 - 1); one token has none"
    assert found["mean_itl_ms"] == pytest.approx(200)
    assert found["p99_itl_ms"] == pytest.approx(298)
    assert found["std_itl_ms"] == pytest.approx(100)
    assert found["mean_e2el_ms"] == pytest.approx(950)
    assert not [key for key in found if "queue" in key]


def test_the_wait_in_the_client_is_told_where_there_may_be_one():
    found = summarize(RUN, has_client_queue=True)
    assert found["mean_queue_time_ms"] == pytest.approx(250)
    assert found["mean_e2el_including_client_queue_ms"] == pytest.approx(1200)
    assert found["mean_e2el_ms"] == pytest.approx(950)


def test_goodput_is_the_rate_of_good_requests():
    assert summarize(RUN, slos={"ttft": 600})["request_goodput"] == 0.5
    assert summarize(RUN, slos={"ttft": 1000, "tpot": 199})["request_goodput"] == 0.5
    assert summarize(RUN, slos={"e2el": 1000})["request_goodput"] == 1.0
    assert summarize(RUN, slos={"e2el": 0})["request_goodput"] == 0.0


def test_nothing_completed_is_null_and_not_nan():
    found = summarize(LoadRun((record(ttft_s=None, error="x"),), 0.0), slos={"ttft": 1})
    json.dumps(found, allow_nan=False)
    assert found["mean_ttft_ms"] is None
    assert found["p99_itl_ms"] is None
    assert found["request_throughput"] == 0


def test_tokens_are_counted_in_the_second_in_which_they_came():
    done = [record(sent_s=0.5, ttft_s=0.25, itl_s=(0.2, 1.1)), record(sent_s=2.0, ttft_s=0.0)]
    assert tokens_per_second(done).tolist() == [2, 0, 2]
    assert tokens_per_second([]).size == 0


def test_requests_at_once_are_counted_exactly():
    spans = [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (1.2, 0.1)]
    done = [record(i, sent_s=s, ttft_s=length) for i, (s, length) in enumerate(spans)]
    assert most_at_once(done) == 3
    assert most_at_once(done[::2]) == 1, "one ends as the other begins"
    assert most_at_once([]) == 0


def test_statistics_of_one_value():
    assert statistics("x", np.array([0.002]), [90]) == {
        "mean_x_ms": 2.0,
        "median_x_ms": 2.0,
        "std_x_ms": 0.0,
        "p90_x_ms": 2.0,
    }


def test_details_have_an_entry_for_every_request():
    found = details(RUN)
    assert {len(values) for values in found.values()} == {3}
    assert found["errors"] == ["", "", "no"]
    assert found["itls"][0] == [0.1, 0.3]
    assert found["start_times"] == [0.0, 1.0, 0.0]
    assert found["queue_times"] == [0.0, 0.5, 0.0]


def test_runs_one_after_the_other_are_one():
    run = joined([RUN, RUN])
    assert run.duration_s == 4.0
    assert [r.index for r in run.records] == list(range(6))
    assert [r.sent_s for r in run.records] == [0.0, 1.0, 0.0, 2.0, 3.0, 2.0]
    assert run.records[4].queue_s == 0.5
    assert not joined([RUN, LoadRun((), 1.0, is_whole=False)]).is_whole
