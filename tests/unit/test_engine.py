"""The step loop over the fake model: launches, collects, failures, interrupts, in their order."""

from dataclasses import dataclass, field

import pytest

from runtime.data.request import FinishReason
from runtime.engine import Engine
from tests.unit.scheduler.fake import VOCAB, expected, make_request, make_scheduler
from tests.unit.scheduler.fake_ahead import Launched, LaunchRunner

MAX_MODEL_LEN = 64


@dataclass
class Runner:
    """Logs the calls, and raises where it is told to."""

    fake: LaunchRunner
    log: list[str] = field(default_factory=list)
    faults: dict[str, BaseException] = field(default_factory=dict)
    launched: list[Launched] = field(default_factory=list)

    def launch(self, so):
        self._note(f"launch {so.step_id}")
        self.launched.append(self.fake.launch(so))
        return self.launched[-1]

    def collect(self, launched):
        self._note(f"collect {launched.so.step_id}")
        return self.fake.collect(launched, ())

    def _note(self, what: str) -> None:
        self.log.append(what)
        if what in self.faults:
            raise self.faults[what]


def make_engine(runs_ahead: bool, **config) -> Engine:
    scheduler = make_scheduler(runs_ahead=runs_ahead, max_model_len=MAX_MODEL_LEN, **config)
    runner = Runner(LaunchRunner(scheduler.pool.block_size))
    return Engine(
        scheduler, runner, vocab_size=VOCAB, max_model_len=MAX_MODEL_LEN, check_integrity=True
    )


def run(engine: Engine) -> list:
    outputs = []
    for _ in range(500):
        if not engine.has_unfinished():
            return outputs
        outputs += engine.step()
    raise AssertionError("not done")


def assert_as_alone(*requests) -> None:
    for request in requests:
        tokens, reason, _ = expected(request, MAX_MODEL_LEN)
        assert request.output_token_ids == tokens
        assert request.finish_reason is reason


def test_steps_take_turns_or_overlap():
    alone, ahead = make_engine(False), make_engine(True)
    for engine in (alone, ahead):
        engine.add(make_request("a", [1] * 3, 3))
        run(engine)
    assert alone.runner.log == [f"{what} {n}" for n in range(3) for what in ("launch", "collect")]
    assert ahead.runner.log == [
        *("launch 0", "launch 1", "collect 0"),
        *("launch 2", "collect 1", "collect 2"),
    ]
    assert ahead.scheduler.stats.steps_ahead == 2
    assert ahead.counters.steps == alone.counters.steps == 3
    assert ahead.step() == []


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_tokens_and_ends_are_those_of_each_request_alone(runs_ahead):
    engine = make_engine(runs_ahead, num_blocks=20, max_num_batched_tokens=16)
    requests = [
        make_request(str(i), [i % 3] * (1 + 3 * i), 9, eos_token_ids=(i, 2 * i)) for i in range(9)
    ]
    for request in requests:
        engine.add(request)
    outputs = run(engine)
    assert_as_alone(*requests)
    for request in requests:
        mine = [o for o in outputs if o.request is request]
        assert [o.token_id for o in mine] == request.output_token_ids
        assert [o.finish_reason for o in mine[:-1]] == [None] * (len(mine) - 1)
    assert engine.scheduler.stats.preemptions > 0


def test_who_needs_its_tokens_waits_within_the_same_call():
    engine = make_engine(True)
    engine.add(make_request("a", [1] * 3, 4, repetition_penalty=1.5))
    assert [len(engine.step()) for _ in range(5)] == [0, 1, 1, 1, 1]
    assert engine.runner.log[:4] == ["launch 0", "collect 0", "launch 1", "collect 1"]
    assert engine.scheduler.stats.steps_ahead == 0
    assert sum(engine.scheduler.stats.wait_reasons.values()) == 3


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_launch_that_fails_ends_its_requests_after_what_ran_before_it(runs_ahead):
    engine = make_engine(runs_ahead)
    engine.runner.faults["launch 2"] = RuntimeError("no")
    a, b = make_request("a", [1] * 3, 9), make_request("b", [2] * 3, 2)
    engine.add(a)
    engine.add(b)
    outputs = run(engine)
    assert a.finish_reason is FinishReason.ERROR
    assert a.error == "step failed: RuntimeError: no"
    assert len(a.output_token_ids) == 2, "its tokens of steps 0 and 1 are kept"
    assert_as_alone(b)
    assert [o.finish_reason for o in outputs if o.request is a] == [None, None, FinishReason.ERROR]
    assert engine.counters.failed_steps == 1
    again = make_request("c", [1] * 9, 9)
    engine.add(again)
    run(engine)
    assert_as_alone(again)


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_step_that_fails_later_takes_the_next_one_with_it(runs_ahead):
    engine = make_engine(runs_ahead)
    engine.runner.faults["collect 1"] = RuntimeError("lost")
    a = make_request("a", [1] * 3, 9)
    engine.add(a)
    run(engine)
    assert a.finish_reason is FinishReason.ERROR
    assert len(a.output_token_ids) == 1
    assert engine.counters.failed_steps == 1 + runs_ahead
    assert engine.scheduler.pool.num_used_blocks == 0
    again = make_request("a", [1] * 9, 9)
    engine.add(again)
    run(engine)
    assert_as_alone(again)


@pytest.mark.parametrize("where", ["launch 1", "launch 2", "collect 1"])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_an_interrupt_leaves_a_scheduler_that_can_go_on(runs_ahead, where):
    engine = make_engine(runs_ahead)
    engine.runner.faults[where] = KeyboardInterrupt()
    a, waiting = make_request("a", [1] * 3, 9), make_request("b", [2] * 5, 2)
    engine.add(a)
    with pytest.raises(KeyboardInterrupt):
        run(engine)
    engine.scheduler.check_integrity()
    assert a.error == "interrupted"
    engine.add(waiting)
    outputs = run(engine)
    assert outputs[-1].request is waiting
    ends = [o for o in outputs if o.request is a and o.finish_reason is not None]
    assert [o.finish_reason for o in ends] == [FinishReason.ERROR], "told with the next step"
    assert_as_alone(waiting)


def test_a_step_that_is_still_in_flight_when_all_have_gone_is_dropped():
    engine = make_engine(True)
    a = make_request("a", [1] * 3, 9)
    engine.add(a)
    engine.step()
    engine.step()
    [output] = engine.finish(["a"])
    assert output.finish_reason is FinishReason.ABORT
    assert not engine.has_unfinished()
    assert engine.scheduler.reset_prefix_cache()
    again = make_request("b", [1] * 9, 5)
    engine.add(again)
    outputs = run(engine)
    assert {o.request for o in outputs} == {again}
    assert_as_alone(again)
