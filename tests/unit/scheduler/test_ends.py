"""How requests end: stop ids, lengths, aborts; rows and messages around that."""

import random

import numpy as np
import pytest

from runtime.data.request import FinishReason
from runtime.data.step import RequestOutput, TokenLogprob
from runtime.errors import RequestError
from runtime.scheduler.rows import RowTable

from .fake import Bench, expected, make_request, make_scheduler, next_token, output_of


def run_tokens(request, tokens, max_model_len=64):
    """Feeds chosen tokens, one a step; the outputs that came."""
    scheduler = make_scheduler(max_model_len=max_model_len)
    scheduler.add(request)
    outputs = []
    for token in tokens:
        so = scheduler.schedule()
        if not so.num_reqs:
            break
        outputs += scheduler.update_from_output(so, output_of(so, [token]))
        scheduler.check_integrity()
    return outputs


def test_eos_is_kept_and_has_no_stop_reason():
    request = make_request("a", [1], 9, eos_token_ids=(2, 5))
    outputs = run_tokens(request, [7, 5, 8])
    assert request.output_token_ids == [7, 5]
    assert request.finish_reason is FinishReason.STOP
    assert request.stop_reason is None
    assert [o.finish_reason for o in outputs] == [None, FinishReason.STOP]
    assert outputs[-1].token_id == 5


def test_a_stop_token_is_the_stop_reason_and_eos_goes_before_it():
    request = make_request("a", [1], 9, stop_token_ids=(3, 5), eos_token_ids=(5,))
    run_tokens(request, [7, 3])
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, 3)
    request = make_request("a", [1], 9, stop_token_ids=(3, 5), eos_token_ids=(5,))
    run_tokens(request, [5])
    assert request.stop_reason is None


def test_ignored_eos_does_not_stop_but_may_be_a_stop_token():
    request = make_request("a", [1], 3, ignore_eos=True, eos_token_ids=(5,))
    run_tokens(request, [5, 5, 5])
    assert (request.finish_reason, len(request.output_token_ids)) == (FinishReason.LENGTH, 3)
    request = make_request("a", [1], 3, ignore_eos=True, stop_token_ids=(5,), eos_token_ids=(5,))
    run_tokens(request, [5])
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, 5)


@pytest.mark.case("DT07")
def test_no_stop_id_counts_before_min_tokens():
    request = make_request("a", [1], 9, min_tokens=4, stop_token_ids=(9,), eos_token_ids=(2, 5))
    run_tokens(request, [2, 5, 9, 2, 5, 7])
    assert request.output_token_ids == [2, 5, 9, 2, 5]
    assert request.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("wish", [{"min_tokens": 6}, {"ignore_eos": True}], ids=str)
def test_eos_ends_a_structured_output_whatever_the_wish(wish):
    grammar = {"choice": ["yes"]}
    request = make_request("a", [1], 9, eos_token_ids=(2,), structured_output=grammar, **wish)
    run_tokens(request, [7, 8, 2, 2, 2])
    assert request.output_token_ids == [7, 8, 2]
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, None)


def test_a_stop_at_the_last_allowed_token_is_a_stop():
    request = make_request("a", [1], 2, eos_token_ids=(5,))
    run_tokens(request, [1, 5])
    assert request.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("max_tokens", "limit", "count"), [(3, 64, 3), (9, 6, 5), (5, 6, 5)])
def test_length(max_tokens, limit, count):
    request = make_request("a", [1], max_tokens)
    run_tokens(request, [7] * 20, max_model_len=limit)
    assert len(request.output_token_ids) == count
    assert request.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("num_ids", [0, 1, 2, 5, 16, 17, 40])
def test_stop_ids_of_any_number_side_by_side(num_ids):
    """More ids than the table has columns, and rows that are used again by requests with fewer."""
    rng = random.Random(num_ids)
    bench = Bench(make_scheduler(max_num_seqs=3))
    requests = [
        make_request(
            str(i),
            [i],
            12,
            stop_token_ids=tuple(rng.sample(range(50), num_ids if i % 2 else num_ids // 3)),
        )
        for i in range(12)
    ]
    bench.add(*requests)
    bench.run()
    bench.assert_as_alone(*requests)


def test_the_stop_table_forgets_the_request_before():
    table = RowTable(1)
    many = make_request("a", [1], 9, stop_token_ids=tuple(range(30)))
    few = make_request("b", [1], 9, stop_token_ids=(3,))
    for request, stopped in ((many, [True, True, False]), (few, [False, True, False])):
        row = table.take(request, 0, 64)
        rows = np.array([row] * 3)
        tokens, lengths = np.array([2, 3, 40], np.int32), np.array([5] * 3, np.int32)
        assert table.is_stopped(rows, tokens, lengths).tolist() == stopped
        table.release(row)


@pytest.mark.case("SC03")
def test_a_prompt_that_can_never_fit_is_refused_and_others_go_on():
    bench = Bench(make_scheduler(block_size=16, num_blocks=49, max_model_len=785))
    big, small = make_request("big", [1] * 1002, 4), make_request("small", [2] * 5, 4)
    with pytest.raises(RequestError, match=r"1002 tokens \(63 KV blocks of 16\).*49 blocks"):
        bench.add(big)
    bench.add(small)
    bench.run()
    bench.assert_as_alone(small)


@pytest.mark.parametrize(
    ("prompt", "field"), [([], "prompt"), ([1] * 64, "prompt"), ([1] * 65, "prompt")]
)
def test_what_can_never_run_is_refused(prompt, field):
    scheduler = make_scheduler(max_model_len=64)
    with pytest.raises(RequestError) as error:
        scheduler.add(make_request("a", prompt))
    assert error.value.field == field
    assert not scheduler.has_unfinished()


def test_an_id_in_use_is_refused_and_may_be_used_again_later():
    bench = Bench(make_scheduler())
    first = make_request("a", [1] * 3, 2)
    bench.add(first)
    with pytest.raises(RequestError, match="already in use"):
        bench.add(make_request("a", [2], 2))
    bench.run()
    bench.assert_as_alone(first)
    bench.finished.clear()
    bench.add(make_request("a", [2], 2))
    bench.run()


def test_abort_at_any_moment():
    bench = Bench(make_scheduler(max_num_seqs=2, max_num_batched_tokens=6))
    running, chunked = make_request("run", [1] * 3, 9), make_request("chunk", [2] * 9, 9)
    waiting = make_request("wait", [3] * 3, 9)
    bench.add(running, chunked, waiting)
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 1)
    outputs = bench.finish("wait", "chunk", "nobody", "wait")
    assert [(o.request, o.token_id, o.finish_reason) for o in outputs] == [
        (waiting, None, FinishReason.ABORT),
        (chunked, None, FinishReason.ABORT),
    ]
    assert chunked.num_computed_tokens == 3
    bench.run()
    bench.assert_as_alone(running)
    assert bench.finish("run") == []


def test_a_stop_string_ends_a_request_with_its_reason():
    bench = Bench(make_scheduler())
    request = make_request("a", [1] * 9, 9)
    bench.add(request)
    bench.step()
    outputs = bench.scheduler.finish(["a"], FinishReason.STOP, "END")
    assert outputs[0].finish_reason is request.finish_reason is FinishReason.STOP
    assert request.stop_reason == "END"
    assert bench.scheduler.pool.num_cached_prefixes == 2, "its blocks are good"


def test_a_request_that_left_while_its_step_ran_gets_no_token():
    bench = Bench(make_scheduler())
    a, b = make_request("a", [1] * 3, 9), make_request("b", [2] * 3, 9)
    bench.add(a, b)
    bench.step()
    so = bench.schedule()
    bench.finish("a")
    outputs = bench.complete(so)
    assert [o.request for o in outputs] == [b]
    assert len(a.output_token_ids) == 1
    bench.run()
    bench.assert_as_alone(b)


def test_a_row_taken_again_before_its_old_step_came_back_keeps_to_the_new_request():
    bench = Bench(make_scheduler(max_num_seqs=1))
    old, new = make_request("old", [1] * 3, 9), make_request("new", [2] * 3, 9)
    bench.add(old, new)
    first = bench.schedule()
    bench.finish("old")
    second = bench.schedule()
    assert second.new_rows[0].row == 0
    assert bench.complete(first) == []
    assert new.output_token_ids == []
    assert [o.request for o in bench.complete(second)] == [new]
    bench.run()
    bench.assert_as_alone(new)


def test_errors_and_logprobs_keep_to_their_rows_when_someone_left():
    scheduler = make_scheduler()
    requests = [make_request(str(i), [i] * 3, 9, logprobs=0) for i in range(4)]
    for request in requests:
        scheduler.add(request)
    so = scheduler.schedule()
    scheduler.finish(["0"], FinishReason.ABORT)
    entries = [[TokenLogprob(t, -1.0, 1)] for t in range(4)]
    ro = output_of(so, [0, 1, 2, 3], {0: "gone", 2: "bad"}, logprobs=entries)
    outputs = scheduler.update_from_output(so, ro)
    assert outputs == [
        RequestOutput(requests[1], 1, None, entries[1]),
        RequestOutput(requests[3], 3, None, entries[3]),
        RequestOutput(requests[2], None, FinishReason.ERROR),
    ]
    assert requests[0].error is None
    assert requests[0].finish_reason is FinishReason.ABORT


@pytest.mark.case("SA17")
@pytest.mark.parametrize("caching", [True, False])
def test_prompt_logprobs_come_whole_with_the_first_token_and_once(caching):
    scheduler = make_scheduler(max_num_batched_tokens=4, prefix_caching=caching)
    request = make_request("a", list(range(13)), 3, prompt_logprobs=0)
    other = make_request("b", [4], 1)
    scheduler.add(request)
    scheduler.add(other)
    received, given = [], 0
    table = scheduler._state.table
    moments = [lambda: table.num_computed[0] == 8, lambda: request.num_tokens == 14]
    while scheduler.has_unfinished():
        so = scheduler.schedule()
        shares = {}
        for row, start, count in zip(
            so.rows.tolist(),
            so.num_computed_tokens.tolist(),
            so.num_scheduled_tokens.tolist(),
            strict=True,
        ):
            if table.requests[row] is request:
                targets = range(start + 1, min(start + count, 12) + 1)
                shares[row] = [[TokenLogprob(t, -1.0, 1)] for t in targets]
                given += len(targets)
        ro = output_of(so, [7] * int(so.samples.sum()), prompt_logprobs=shares)
        received += [o for o in scheduler.update_from_output(so, ro) if o.request is request]
        if moments and moments[0]():
            moments.pop(0)
            scheduler._state.preempt(request.row, "test")
            scheduler._state.close_gaps()
    assert given > 12, "some were computed twice"
    assert request.num_preemptions == 2
    assert len(received) == 3
    assert [len(o.prompt_logprobs or ()) for o in received] == [12, 0, 0]
    assert [entry[0].token_id for entry in received[0].prompt_logprobs] == list(range(1, 13))


def test_freed_rows_are_reported_once_and_may_be_used_again_at_once():
    bench = Bench(make_scheduler(max_num_seqs=2))
    bench.add(*[make_request(str(i), [i] * 3, 1 + i) for i in range(4)])
    steps = []
    while bench.scheduler.has_unfinished():
        so = bench.schedule()
        steps.append((so.rows.tolist(), so.freed_rows, [new.row for new in so.new_rows]))
        bench.complete(so)
    assert (
        steps
        == [
            ([0, 1], (), [0, 1]),
            ([1, 0], (0,), [0]),
            ([0, 1], (1,), [1]),
            ([0, 1], (), []),
            ([1], (0,), []),
            ([1], (), []),
        ][: len(steps)]
    )
    assert len(steps) == 6


def test_rows_freed_before_an_idle_time_are_reported_with_the_next_step():
    bench = Bench(make_scheduler())
    bench.add(make_request("a", [1] * 3, 1))
    bench.run()
    assert bench.scheduler.schedule().freed_rows == ()
    bench.add(make_request("b", [1] * 3, 1))
    assert bench.schedule().freed_rows == (0,)


def test_rows_freed_are_reported_again_after_a_failed_step():
    bench = Bench(make_scheduler())
    a, b = make_request("a", [1] * 3, 1), make_request("b", [1] * 3, 4)
    bench.add(a, b)
    bench.step()
    so = bench.schedule()
    assert so.freed_rows == (0,)
    bench.fail(so, "before")
    bench.add(make_request("c", [5], 1))
    so = bench.schedule()
    assert so.freed_rows == (0, 1)
    assert so.new_rows[0].row == 0
    bench.complete(so)


def test_messages_are_copies():
    bench = Bench(make_scheduler(max_num_batched_tokens=3))
    request = make_request("a", [1] * 5, 6)
    bench.add(request)
    so = bench.schedule()
    kept = [array.copy() for array in (so.rows, so.num_scheduled_tokens, so.num_computed_tokens)]
    new = so.new_rows[0]
    tokens, blocks = list(new.token_ids), list(new.block_ids)
    bench.complete(so)
    bench.run()
    assert (new.token_ids, new.block_ids) == (tokens, blocks)
    now = (so.rows, so.num_scheduled_tokens, so.num_computed_tokens)
    assert all((a == b).all() for a, b in zip(kept, now, strict=True))
    assert all(array.dtype == np.int32 for array in now)
    assert so.samples.dtype == np.bool_


def test_times_and_progress():
    bench = Bench(make_scheduler())
    request = make_request("a", [1] * 5, 3)
    assert request.first_scheduled_s is None
    bench.add(request)
    bench.step()
    first = request.first_scheduled_s
    assert first >= request.arrival_s
    bench.run()
    assert request.first_scheduled_s == first
    assert request.num_computed_tokens == 7
    assert request.row == -1
    assert request.block_ids == []


def test_the_fake_model_depends_on_every_token():
    assert next_token((1, 2, 3)) != next_token((2, 1, 3)) or next_token((1, 2)) != next_token((2,))
    request = make_request("a", [1, 2, 3], 5)
    bench = Bench(make_scheduler())
    bench.add(request)
    bench.step()
    bench.runner.first[bench.runner.slot(bench.runner.rows[0], 1)] = (9, 1)
    with pytest.raises(AssertionError):
        bench.run()
    assert len(expected(request, 64)[0]) == 5
