"""Steps that are launched before the host has the tokens of the one before."""

import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.runner.helpers import new_row, step
from tests.unit.runner.test_model_runner import MODES

PROMPTS = {0: [3, 4, 5], 1: [6, 7, 8, 9, 10], 2: [11, 12]}
BLOCKS = {0: [2, 3, 4], 1: [5, 6, 7], 2: [8, 9, 10]}


def first_step(**changes):
    new = [new_row(r, PROMPTS[r], block_ids=BLOCKS[r], **changes) for r in PROMPTS]
    return step([(r, 0, len(PROMPTS[r]), True) for r in PROMPTS], new=new)


def decode(so_number, rows=(0, 1, 2), feeds=None):
    so = step([(r, len(PROMPTS[r]) + so_number, 1, True) for r in rows], step_id=so_number)
    return so if feeds is None else replace(so, feeds=np.array(feeds))


def tokens_of(ro):
    return ro.token_ids.tolist()


@pytest.mark.parametrize("canary", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_fed_tokens_give_what_known_ones_give(mode, canary, make_runner):
    engine = {"padding_canary": canary}
    known, fed = (make_runner(graphs=MODES[mode], engine=engine) for _ in range(2))
    expected = [tokens_of(known.execute(so)) for so in (first_step(), *map(decode, range(6)))]
    launched, got = fed.launch(first_step()), []
    for number in range(6):
        ahead = fed.launch(decode(number, feeds=[True] * 3))
        got.append(tokens_of(fed.collect(launched)))
        launched = ahead
    assert [*got, tokens_of(fed.collect(launched))] == expected
    assert np.array_equal(fed.states.token_ids, known.states.token_ids)


def test_known_and_fed_tokens_share_a_step_in_any_order(make_runner):
    known, fed = make_runner(), make_runner()
    expected = [tokens_of(known.execute(so)) for so in (first_step(), decode(0), decode(1))]
    first = fed.launch(first_step())
    second = fed.launch(decode(0, rows=(2, 0), feeds=[True, True]))
    assert tokens_of(fed.collect(first)) == expected[0]
    third = fed.launch(
        replace(
            step([(1, 5, 1, True), (2, 3, 1, True), (0, 4, 1, True)]),
            feeds=np.array([False, True, True]),
        )
    )
    assert tokens_of(fed.collect(second)) == [expected[1][2], expected[1][0]]
    assert tokens_of(fed.collect(third)) == [expected[1][1], expected[2][2], expected[2][0]]


def test_a_row_that_has_changed_hands_keeps_its_new_tokens(make_runner):
    runner = make_runner()
    first = runner.launch(first_step())
    taken = list(range(20, 40))
    second = runner.launch(
        step([(0, 0, 4, False)], freed=[0, 1], new=[new_row(0, taken, block_ids=[11])])
    )
    assert len(runner.collect(first).token_ids) == 3
    assert runner.states.token_ids[0, :20].tolist() == taken
    assert len(runner.collect(second).token_ids) == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_row_without_a_token_is_fed_one_all_the_same_and_ends_alone(mode, make_runner):
    known, fed = make_runner(graphs=MODES[mode]), make_runner(graphs=MODES[mode])
    expected = [tokens_of(known.execute(so)) for so in (first_step(), decode(0))]
    compute = fed._model.compute_logits

    def broken(hidden):
        logits = compute(hidden)
        logits[1] = torch.nan
        return logits

    whole = fed._model
    fed._model = types.SimpleNamespace(forward=whole.forward, compute_logits=broken)
    first = fed.launch(first_step())
    fed._model = whole
    second = fed.launch(decode(0, feeds=[True] * 3))
    ro = fed.collect(first)
    assert list(ro.errors) == [1]
    assert [tokens_of(ro)[i] for i in (0, 2)] == [expected[0][i] for i in (0, 2)]
    ro = fed.collect(second)
    assert [tokens_of(ro)[i] for i in (0, 2)] == [expected[1][i] for i in (0, 2)]


def test_a_token_that_the_host_settles_is_told(make_runner, monkeypatch):
    """Flat rows whose head cannot tell the token, as on a GPU."""
    monkeypatch.setattr("runtime.sampling.sampler.reading_is_free", lambda device: False)
    monkeypatch.setattr("runtime.sampling.sampler.draw_from_head", lambda b, i, p: i * 0 - 3)
    settled, told = make_runner(), make_runner()
    params = {"temperature": 1.0, "top_p": 0.9, "seed": 5}
    so = first_step()
    rows = [replace(new, params=new.params.updated(**params)) for new in so.new_rows]
    so = replace(so, new_rows=(rows[0], *so.new_rows[1:]))
    monkeypatch.setattr(settled.sampler, "_may_read", True)
    expected = tokens_of(settled.execute(so))
    launched = told.launch(so)
    assert told._sampled.tolist() == [-3, *expected[1:]]
    ro = told.collect(launched)
    assert tokens_of(ro) == expected
    assert ro.late == (0,)


def test_nothing_can_be_fed_after_a_step_without_samples(make_runner):
    runner = make_runner()
    runner.launch(first_step())
    runner.launch(step([(0, 3, 1, False)]))
    with pytest.raises(AssertionError, match="no step that samples"):
        runner.launch(decode(1, rows=(0,), feeds=[True]))
