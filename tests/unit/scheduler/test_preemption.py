"""Pools too small for all: who gives way, and how it comes back."""

import itertools

import pytest

from runtime.data.request import FinishReason, RequestStatus
from runtime.errors import ConfigError

from .fake import Bench, chunks_of, make_request, make_scheduler

SIZE = 4


@pytest.mark.case("SC05")
@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
def test_without_chunks_a_budget_below_the_longest_request_is_refused(policy):
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens: 500 .*max_model_len 1024"):
        make_scheduler(
            policy=policy,
            chunked_prefill=False,
            block_size=256,
            num_blocks=4,
            max_model_len=1024,
            max_num_batched_tokens=500,
        )


@pytest.mark.case("SC05")
@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_a_request_that_outgrew_the_budget_comes_back(policy, chunked, caching):
    """Scaled: blocks of 8, 4 of them, so that neither finds its old prefix again."""
    bench = Bench(
        make_scheduler(
            policy=policy,
            chunked_prefill=chunked,
            block_size=8,
            num_blocks=4,
            max_model_len=33,
            max_num_batched_tokens=16 if chunked else 33,
            max_num_seqs=4,
            prefix_caching=caching,
        )
    )
    a, b = make_request("a", [1] * 8, 24), make_request("b", [2] * 8, 20)
    bench.add(a, b)
    bench.run()
    assert a.num_preemptions == 0
    assert b.num_preemptions >= 1
    bench.assert_as_alone(a, b)


@pytest.mark.case("SC07")
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [3, 64])
@pytest.mark.parametrize("length", range(SIZE - 1, 2 * SIZE + 2))
def test_a_preempted_request_yields_its_next_token_once(length, budget, caching):
    """Preempts at exactly `length` known tokens, by hand, then lets it run on."""
    bench = Bench(make_scheduler(max_num_batched_tokens=budget, prefix_caching=caching))
    request = make_request("a", [5, 6, 7], max_tokens=12)
    bench.add(request)
    while request.num_tokens < length:
        bench.step()
    before = list(request.token_ids)
    if request.row >= 0:
        bench.scheduler._state.preempt(request.row, "test")
        bench.scheduler._state.close_gaps()
        assert request.status is RequestStatus.PREEMPTED
    bench.scheduler.check_integrity()
    bench.run()
    assert request.token_ids[: len(before)] == before
    bench.assert_as_alone(request)


@pytest.mark.case("SC07")
def test_a_resumed_request_hits_its_own_blocks():
    bench = Bench(make_scheduler())
    request = make_request("a", list(range(10)), max_tokens=8)
    bench.add(request)
    for _ in range(4):
        bench.step()
    keys = list(request.block_keys)
    assert (request.num_tokens, len(keys)) == (14, 3)
    bench.scheduler._state.preempt(request.row, "test")
    bench.scheduler._state.close_gaps()
    assert request.num_computed_tokens == 0
    assert request.block_keys == keys
    so = bench.schedule()
    assert so.num_computed_tokens.tolist() == [12]
    assert so.num_scheduled_tokens.tolist() == [2]
    assert so.new_rows[0].token_ids == request.token_ids
    assert so.new_rows[0].num_prompt_tokens == 10
    bench.complete(so)
    bench.run()
    stats = bench.scheduler.stats
    assert (stats.preemptions, stats.recomputed_tokens) == (1, 1)
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (10, 0)
    assert (stats.preempted_query_tokens, stats.preempted_hit_tokens) == (14, 12)
    assert request.num_cached_tokens == 0, "of the prompt, at the first admission"
    bench.assert_as_alone(request)


@pytest.mark.case("SC09")
def test_no_ping_pong():
    bench = Bench(
        make_scheduler(num_blocks=5, max_model_len=20, max_num_batched_tokens=4, max_num_seqs=4)
    )
    a, b = make_request("a", [1, 2, 3], max_tokens=16), make_request("b", [9] * 16, max_tokens=3)
    bench.add(a)
    bench.step()
    bench.add(b)
    while not a.is_finished:
        bench.step()
    assert b.num_preemptions <= 2
    assert bench.scheduler.stats.preemptions <= 2
    bench.run()
    bench.assert_as_alone(a, b)


@pytest.mark.case("SC09")
def test_admission_looks_at_the_whole_prompt():
    bench = Bench(make_scheduler(num_blocks=5, max_model_len=20, max_num_batched_tokens=4))
    a = make_request("a", [1, 2, 3, 4], max_tokens=3)
    bench.add(a)
    bench.step()
    bench.step()  # a holds 2 blocks
    bench.add(make_request("b", [9] * 16, max_tokens=2))
    so = bench.schedule()
    assert so.num_reqs == 1
    assert bench.scheduler.num_waiting == 1
    bench.complete(so)
    assert a.is_finished
    assert bench.schedule().new_rows[0].request_id == "b"


@pytest.mark.case("PC15")
def test_shared_blocks_outlive_a_preempted_sibling():
    bench = Bench(make_scheduler(num_blocks=7, max_model_len=28))
    shared = list(range(8))
    a = make_request("a", [*shared, 20], max_tokens=12)
    b = make_request("b", [*shared, 30], max_tokens=12)
    bench.add(a)
    bench.step()
    bench.add(b)
    bench.step()
    common = b.block_ids[:2]
    assert common == a.block_ids[:2]
    pool = bench.scheduler.pool
    seen = [[pool.ref_count(block_id) for block_id in common]]
    while bench.scheduler.has_unfinished():
        bench.step()
        counts = [pool.ref_count(block_id) for block_id in common]
        if counts != seen[-1]:
            seen.append(counts)
        assert a.is_finished or min(counts) >= 1
    assert b.num_preemptions == 1
    assert seen[:2] == [[2, 2], [1, 1]]
    assert seen[-1] == [0, 0]
    bench.assert_as_alone(a, b)


def test_the_last_of_running_gives_way_and_goes_to_the_front():
    bench = Bench(make_scheduler(num_blocks=6, max_model_len=24, prefix_caching=False))
    requests = [make_request(str(i), [i] * 8, max_tokens=9) for i in range(3)]
    bench.add(*requests)
    bench.step()
    late = make_request("late", [7], max_tokens=1)
    bench.add(late)
    so = bench.schedule()
    assert requests[2].status is RequestStatus.PREEMPTED
    assert so.num_reqs == 2
    assert so.freed_rows == (2,)
    assert not so.new_rows, "nobody is admitted in a step that preempts"
    assert bench.scheduler.num_waiting == 2
    bench.complete(so)
    bench.run()
    order = [new.request_id for step in bench.steps for new in step.new_rows]
    assert order == ["0", "1", "2", "1", "2", "late"], "the one preempted last comes back first"
    bench.assert_as_alone(*requests, late)


def test_a_victim_in_the_middle_of_its_prompt_starts_again():
    bench = Bench(
        make_scheduler(
            num_blocks=6, max_model_len=24, max_num_batched_tokens=4, prefix_caching=False
        )
    )
    a, b = make_request("a", [1] * 3, max_tokens=12), make_request("b", [2] * 16, max_tokens=3)
    bench.add(a, b)
    bench.run()
    assert b.num_preemptions == 1
    assert bench.scheduler.stats.recomputed_tokens > 0
    bench.assert_as_alone(a, b)


def test_priority_chooses_the_lowest_priority_then_the_latest():
    bench = Bench(make_scheduler(num_blocks=6, max_model_len=24, order="priority", max_num_seqs=3))
    low = make_request("low", [1] * 8, 9, priority=5, arrival_s=1.0)
    high = make_request("high", [2] * 8, 9, priority=0, arrival_s=3.0)
    late = make_request("late", [3] * 8, 9, priority=0, arrival_s=4.0)
    bench.add(low)
    bench.step()
    bench.add(late, high)
    so = bench.schedule()
    assert [new.request_id for new in so.new_rows] == ["high"], "low's third block leaves 3"
    bench.complete(so)
    bench.run()
    assert low.num_preemptions >= 1
    assert high.num_preemptions == 0
    bench.assert_as_alone(low, high, late)


def test_a_victim_gives_back_what_it_was_given_in_this_step():
    """The victim stands first in running order, so it has its token when it must leave."""
    bench = Bench(
        make_scheduler(
            num_blocks=4,
            max_model_len=17,
            order="priority",
            max_num_batched_tokens=2,
            prefix_caching=False,
        )
    )
    low = make_request("low", [1, 1], 12, priority=5, arrival_s=1.0)
    high = make_request("high", [2, 2], 12, priority=0, arrival_s=2.0)
    bench.add(low)
    bench.step()
    bench.add(high)
    while low.num_preemptions == 0:
        so = bench.schedule()
        bench.complete(so)
    assert so.rows.tolist() == [1]
    assert so.num_tokens == 1
    assert 0 in so.freed_rows
    bench.run()
    assert high.num_preemptions == 0
    bench.assert_as_alone(low, high)


def test_a_token_given_back_goes_to_the_next_in_order():
    bench = Bench(
        make_scheduler(
            num_blocks=9,
            max_model_len=37,
            order="priority",
            max_num_batched_tokens=3,
            prefix_caching=False,
        )
    )
    low, high = make_request("low", [1], 8, priority=5), make_request("high", [1, 2], 8)
    mid = make_request("mid", [3] * 28, 3, priority=1)
    bench.add(high, low)
    bench.step()
    state = bench.scheduler._state
    state.order = state.order[::-1].copy()  # the victim first
    bench.add(mid)
    while low.num_preemptions == 0:
        so = bench.schedule()
        bench.complete(so)
    before = bench.steps[-2]
    assert dict(zip(before.rows.tolist(), before.num_scheduled_tokens.tolist(), strict=True)) == {
        1: 1,
        0: 1,
        2: 1,
    }
    assert so.rows.tolist() == [0, 2]
    assert so.num_scheduled_tokens.tolist() == [1, 2]
    bench.run()
    bench.assert_as_alone(low, high, mid)


def test_nobody_is_admitted_in_a_step_that_preempts():
    """The victim's 3 blocks would hold both the one that runs and the one that waits."""
    bench = Bench(make_scheduler(num_blocks=6, max_model_len=24, order="priority"))
    low, mid = make_request("low", [1] * 9, 9, priority=5), make_request("mid", [2] * 11, 9)
    bench.add(mid, low)
    bench.step()
    new = make_request("new", [3] * 5, 2, priority=-1)
    bench.add(new)
    while low.num_preemptions == 0:
        assert bench.schedule().new_rows == () or len(bench.steps) == 1
        bench.complete(bench.steps[-1])
    assert bench.scheduler.pool.num_free_blocks == 2
    assert [r.request_id for r in bench.schedule().new_rows] == ["new"]
    bench.complete(bench.steps[-1])
    bench.run()
    bench.assert_as_alone(low, mid, new)


@pytest.mark.parametrize("order", ["fcfs", "priority"])
@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
def test_any_pool_that_holds_one_request_serves_many(policy, order):
    for num_blocks, budget in itertools.product((6, 7, 9, 13), (5, 24)):
        bench = Bench(
            make_scheduler(
                policy=policy,
                order=order,
                num_blocks=num_blocks,
                max_model_len=25,
                max_num_batched_tokens=budget,
                max_num_seqs=5,
            )
        )
        requests = [
            make_request(str(i), [i % 3] * (3 + 2 * i), 25, priority=i % 2, arrival_s=float(i))
            for i in range(8)
        ]
        bench.add(*requests)
        bench.run()
        bench.assert_as_alone(*requests)
        assert bench.scheduler.pool.num_used_blocks == 0


def test_a_preempted_request_can_be_ended():
    bench = Bench(make_scheduler())
    request = make_request("a", [1] * 6, 9)
    bench.add(request)
    bench.step()
    bench.scheduler._state.preempt(request.row, "test")
    bench.scheduler._state.close_gaps()
    outputs = bench.finish("a")
    assert outputs[0].finish_reason is FinishReason.ABORT
    assert not bench.scheduler.has_unfinished()
    assert chunks_of(bench) == [6]
