"""Steps as bytes: what comes out is what went in, and bad bytes are refused."""

from dataclasses import replace

import numpy as np
import pytest

from runtime.data import wire
from runtime.data.params import SamplingParams
from runtime.data.step import NewRow, SchedulerOutput
from runtime.errors import RequestError
from tests.unit.scheduler.fake import Bench, make_request, make_scheduler

PARAMS = SamplingParams(
    temperature=0.5,
    seed=2**62,
    stop=["a", "\N{WAVE DASH}"],
    logit_bias={3: 1.5},
    allowed_token_ids=[1, 2],
    structured_output={"json": {"type": "object", "maxProperties": 1}},
)


def make_step(**changes) -> SchedulerOutput:
    numbers = np.array([1, 2], np.int32)
    new = NewRow(1, "x", [1, 2], 2, 0, [3], PARAMS, (2,))
    so = SchedulerOutput(
        step_id=4,
        rows=numbers,
        num_scheduled_tokens=numbers + 1,
        num_computed_tokens=numbers + 2,
        samples=np.array([True, False]),
        freed_rows=(1, 0),
        new_rows=(new,),
        new_block_ids=((2, [5, 6]),),
        blocks_to_clear=(7,),
        feeds=np.array([False, True]),
    )
    return replace(so, **changes)


@pytest.mark.parametrize("feeds", [None, np.array([False, True])])
def test_a_step_comes_back_equal_and_writable(feeds):
    sent = make_step(feeds=feeds)
    got = wire.decode_step(wire.encode_step(sent))
    for name in SchedulerOutput.__dataclass_fields__:
        mine, theirs = getattr(sent, name), getattr(got, name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype, name
            np.testing.assert_array_equal(mine, theirs)
            theirs[:] = 0
        else:
            assert mine == theirs, name


def test_a_runner_behind_the_wire_makes_the_same_tokens(monkeypatch):
    bench = Bench(make_scheduler(num_blocks=16, max_num_batched_tokens=16))
    execute = bench.runner.execute
    monkeypatch.setattr(
        bench.runner,
        "execute",
        lambda so, *rest: execute(wire.decode_step(wire.encode_step(so)), *rest),
    )
    requests = [make_request(str(i), [i] * (3 + 4 * i), 20) for i in range(6)]
    bench.add(*requests)
    bench.run()
    assert bench.scheduler.stats.preemptions > 0
    bench.assert_as_alone(*requests)


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_bytes_that_are_cut_are_refused(cut):
    with pytest.raises(ValueError, match="no step of format 1"):
        wire.decode_step(wire.encode_step(make_step())[:cut])


@pytest.mark.parametrize("data", [b"\x92\x02\x80", b"\x92\x01\x80", b"\xc0", b"\x80"])
def test_another_version_and_other_data_are_refused(data):
    with pytest.raises(ValueError, match="no step of format 1"):
        wire.decode_step(data)


def test_parameters_out_of_their_range_are_refused():
    data = wire.encode_step(make_step())
    changed = data.replace(b"temperature\xcb" + _double(0.5), b"temperature\xcb" + _double(-1.0))
    assert changed != data
    with pytest.raises((ValueError, RequestError), match="temperature"):
        wire.decode_step(changed)


def test_functions_stay_in_their_process():
    params = PARAMS.updated(logits_processors=[lambda ids, logits: logits])
    [new] = make_step().new_rows
    with pytest.raises(ValueError, match=r"x: logits_processors cannot leave"):
        wire.encode_step(make_step(new_rows=(replace(new, params=params),)))


def _double(value: float) -> bytes:
    return np.array(value, ">f8").tobytes()
