"""What an observer is told of the steps of an engine over the fake model."""

import numpy as np
import pytest

from runtime.data.request import FinishReason
from runtime.engine import Engine
from runtime.observe.steps import StepRecord
from runtime.scheduler import admission
from tests.unit.scheduler.fake import VOCAB, make_request, make_scheduler
from tests.unit.scheduler.fake_ahead import LaunchRunner

MAX_MODEL_LEN = 64


class Runner:
    def __init__(self, block_size: int, fails_at: int | None) -> None:
        self.fake = LaunchRunner(block_size)
        self.fails_at = fails_at

    def launch(self, so):
        if so.step_id == self.fails_at:
            raise RuntimeError("no")
        return self.fake.launch(so)

    def collect(self, launched):
        return self.fake.collect(launched, ())


class Observer:
    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def on_step(self, record: StepRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Not called by an engine."""


def observed(
    *requests, runs_ahead: bool = False, fails_at: int | None = None, **config
) -> tuple[Engine, list[StepRecord]]:
    scheduler = make_scheduler(runs_ahead=runs_ahead, **config)
    observer = Observer()
    engine = Engine(
        scheduler,
        Runner(scheduler.pool.block_size, fails_at),
        vocab_size=VOCAB,
        max_model_len=MAX_MODEL_LEN,
        observer=observer,
    )
    for request in requests:
        engine.add(request)
    while engine.has_unfinished():
        engine.step()
    return engine, observer.records


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_every_step_is_told_once_in_order_with_its_requests_and_tokens(runs_ahead):
    requests = [make_request(str(i), [i] * (3 + 5 * i), 4) for i in range(4)]
    engine, records = observed(*requests, runs_ahead=runs_ahead, max_num_batched_tokens=9)
    assert [r.so.step_id for r in records] == list(range(engine.counters.steps))
    told: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for record in records:
        assert len(record.request_ids) == record.so.num_reqs
        assert record.ro is not None
        assert record.ro.shape.num_tokens == record.so.num_tokens
        assert not record.error
        sampling = np.array(record.request_ids)[record.so.samples].tolist()
        for request_id, token_id in zip(sampling, record.ro.token_ids.tolist(), strict=True):
            told[request_id].append(token_id)
    for request in requests:
        made = request.output_token_ids
        assert told[request.request_id][: len(made)] == made
    ends = [o for r in records for o in r.outputs if o.finish_reason is not None]
    assert {o.request.request_id for o in ends} == set(told)


def test_times_are_of_this_step_and_follow_each_other():
    _, records = observed(make_request("a", [1] * 5, 3))
    starts = [r.started_s for r in records]
    assert starts == sorted(starts)
    for record, next_start in zip(records, starts[1:], strict=False):
        assert all(seconds > 0 for seconds in record.times)
        assert record.started_s + sum(record.times) <= next_start


def test_sizes_are_those_after_the_step_was_scheduled():
    _, records = observed(
        make_request("a", [1] * 8, 2), make_request("b", [2] * 4, 2), max_num_seqs=1
    )
    first = records[0]
    assert (first.num_running, first.num_waiting, first.num_blocks_used) == (1, 1, 2)


def test_a_preemption_names_who_needed_the_blocks():
    requests = [make_request(str(i), [i] * 8, 20) for i in range(3)]
    engine, records = observed(*requests, num_blocks=8, prefix_caching=False, max_model_len=32)
    told = [p for r in records for p in r.notes.preempted]
    assert len(told) == engine.scheduler.stats.preemptions > 0
    first = told[0]
    assert first.request_id == "2"
    assert first.num_computed_tokens >= 8
    assert first.reason == "2 needs 1 blocks, 0 are free", "the last of the running, here itself"


@pytest.mark.parametrize(
    ("config", "first", "reason"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 8}, 8, admission.NO_BUDGET),
        ({"max_num_seqs": 1}, 8, admission.NO_ROW),
        ({"num_blocks": 8, "watermark": 0.5}, 16, admission.NO_BLOCKS),
        ({"policy": "prefill_first", "max_num_batched_tokens": 64}, 60, admission.NO_ROOM),
        ({}, 8, ""),
    ],
)
def test_why_the_first_waiting_request_was_held_back(config, first, reason):
    if "num_blocks" in config:
        config = {**config, "max_model_len": 32}
    _, records = observed(
        make_request("a", [1] * first, 2), make_request("b", [2] * 9, 2), **config
    )
    assert records[0].notes.held_back == reason


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_step_that_failed_is_told_with_what_it_ended(runs_ahead):
    engine, records = observed(make_request("a", [1] * 3, 9), runs_ahead=runs_ahead, fails_at=2)
    failed = records[-1]
    assert [r.so.step_id for r in records] == [0, 1, 2]
    assert failed.ro is None
    assert failed.error == "step failed: RuntimeError: no"
    assert [o.finish_reason for o in failed.outputs] == [FinishReason.ERROR]
    assert engine.counters.failed_steps == 1
