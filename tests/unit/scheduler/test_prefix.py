"""Prefix hits: never of what is not, or may not be, written."""

import pytest

from runtime.data.request import ExtraKey, FinishReason
from runtime.kv_cache import BlockHasher

from .fake import Bench, make_request, make_scheduler, output_of


@pytest.mark.case("PC01")
def test_a_chunk_that_ends_inside_a_block_gives_it_no_key():
    bench = Bench(
        make_scheduler(
            block_size=256, num_blocks=64, max_model_len=1024, max_num_batched_tokens=300
        )
    )
    a = make_request("a", [1] * 200, max_tokens=1)
    b = make_request("b", [i % 11 for i in range(600)], max_tokens=1)
    bench.add(a, b)
    so = bench.schedule()
    assert so.num_scheduled_tokens.tolist() == [200, 100]
    pool = bench.scheduler.pool
    assert [pool.key_of(block_id) for block_id in b.block_ids] == [None] * 3
    bench.scheduler.update_from_output(so, output_of(so, [1]))
    so = bench.schedule()
    assert so.num_scheduled_tokens.tolist() == [300]
    keys = [pool.key_of(block_id) for block_id in b.block_ids]
    assert keys == [b.block_keys[0], None, None]


@pytest.mark.case("PC01")
def test_a_half_written_block_is_never_hit():
    bench = Bench(make_scheduler(max_num_batched_tokens=2))
    a, b = make_request("a", list(range(9)), 3), make_request("b", list(range(9)), 3)
    bench.add(a, b)
    bench.step()
    assert bench.scheduler.pool.key_of(a.block_ids[0]) is None
    bench.run()
    bench.assert_as_alone(a, b)


@pytest.mark.case("PC03")
def test_the_same_prompt_twice_in_one_step_equals_alone():
    bench = Bench(make_scheduler())
    a, b = make_request("a", list(range(10)), 6), make_request("b", list(range(10)), 6)
    bench.add(a, b)
    so = bench.schedule()
    assert so.num_computed_tokens.tolist() == [0, 8]
    assert so.num_scheduled_tokens.tolist() == [10, 2]
    bench.complete(so)
    bench.run()
    bench.assert_as_alone(a, b)


@pytest.mark.case("PC03")
@pytest.mark.parametrize("how", ["before", "half-way"])
def test_a_failed_step_leaves_no_hit(how):
    bench = Bench(make_scheduler())
    old = make_request("old", list(range(5)), 1)
    bench.add(old)
    bench.run()
    first, twin = make_request("a", list(range(10)), 6), make_request("b", list(range(10)), 6)
    bystander = make_request("c", [3] * 4, 2)
    bench.add(first, twin)
    outputs = bench.fail(bench.schedule(), how)
    bench.add(bystander)
    assert [o.finish_reason for o in outputs] == [FinishReason.ERROR] * 2
    assert first.error == how
    again = make_request("d", list(range(10)), 6)
    bench.add(again)
    so = bench.schedule()
    assert so.num_computed_tokens.tolist() == [0, 4], "what an earlier step wrote stays"
    bench.complete(so)
    bench.run()
    bench.assert_as_alone(again, bystander)


@pytest.mark.case("PC03")
@pytest.mark.parametrize("is_run", [True, False])
def test_a_request_aborted_before_its_step_ran_leaves_no_hit(is_run):
    bench = Bench(make_scheduler())
    first, other = make_request("a", list(range(10)), 6), make_request("b", [7] * 5, 6)
    bench.add(first, other)
    so = bench.schedule()
    bench.finish("a")
    assert bench.scheduler.pool.num_cached_prefixes == 1, "only b's"
    if is_run:
        outputs = bench.complete(so)
        assert [output.request for output in outputs] == [other]
    else:
        bench.fail(so, "before")
    again = make_request("c", list(range(10)), 6)
    bench.add(again)
    so = bench.schedule()
    assert so.new_rows[0].num_computed_tokens == 0
    bench.complete(so)
    bench.run()
    bench.assert_as_alone(again)


@pytest.mark.case("PC03")
def test_a_sibling_keeps_blocks_whose_first_owner_was_aborted_in_the_same_step():
    bench = Bench(make_scheduler())
    first, sibling = make_request("a", list(range(10)), 6), make_request("b", list(range(10)), 6)
    bench.add(first, sibling)
    so = bench.schedule()
    assert so.num_computed_tokens.tolist() == [0, 8]
    bench.finish("a")
    bench.complete(so)
    bench.run()
    bench.assert_as_alone(sibling)


@pytest.mark.case("PC05")
def test_an_evicted_prefix_is_computed_again():
    bench = Bench(make_scheduler(num_blocks=3, max_model_len=13))
    for name, prompt in (("p1", [1] * 9), ("big", [2] * 12), ("p2", [1] * 9)):
        request = make_request(name, prompt, 1)
        bench.add(request)
        bench.run()
        assert request.num_cached_tokens == 0
        bench.assert_as_alone(request)


@pytest.mark.case("PC07")
def test_salt_separates_tenants():
    bench = Bench(make_scheduler())
    salts = {"one": "s1", "two": "s1", "three": "s2", "four": None}
    requests = [make_request(n, list(range(12)), 4, cache_salt=s) for n, s in salts.items()]
    for request in requests:
        bench.add(request)
        bench.run()
    assert [r.num_cached_tokens for r in requests] == [0, 8, 0, 0]
    assert len({tuple(r.output_token_ids) for r in requests}) == 1
    bench.assert_as_alone(*requests)


def test_what_changes_kv_from_a_position_on_separates_from_its_block_on():
    bench = Bench(make_scheduler())
    cat, dog = ExtraKey("image", "cat", 9), ExtraKey("image", "dog", 9)
    adapter = ExtraKey("adapter", "x")
    extra = [(cat,), (cat,), (dog,), (), (adapter,), (adapter, cat), (adapter,)]
    requests = [
        make_request(str(i), list(range(18)), 4, extra_keys=keys) for i, keys in enumerate(extra)
    ]
    for request in requests:
        bench.add(request)
        bench.run()
    assert [r.num_cached_tokens for r in requests] == [0, 16, 8, 8, 0, 8, 16]
    bench.assert_as_alone(*requests)


@pytest.mark.case("PC09")
@pytest.mark.parametrize("shared", [8, 9, 12])
@pytest.mark.parametrize("hash_name", ["xxh3_128", "sha256"])
def test_a_hit_equals_a_miss(shared, hash_name):
    warm = Bench(make_scheduler(hash_name=hash_name))
    for i in range(3):
        tokens = [*range(shared), 40 + i, 41]
        hit = make_request(str(i), tokens, 6)
        warm.add(hit)
        warm.run()
        assert hit.num_cached_tokens == (shared // 4 * 4 if i else 0)
        cold = Bench(make_scheduler(prefix_caching=False))
        miss = make_request(str(i), tokens, 6)
        cold.add(miss)
        cold.run()
        assert miss.num_cached_tokens == 0
        assert hit.output_token_ids == miss.output_token_ids
        warm.assert_as_alone(hit)


@pytest.mark.case("PC13")
def test_after_an_abort_between_chunks_only_whole_blocks_are_reused():
    bench = Bench(make_scheduler(max_num_batched_tokens=6))
    first = make_request("a", list(range(14)), 6)
    bench.add(first)
    bench.step()
    bench.finish("a")
    again = make_request("b", list(range(14)), 6)
    bench.add(again)
    bench.run()
    assert again.num_cached_tokens == 4
    bench.assert_as_alone(again)


@pytest.mark.case("PC13")
def test_non_finite_logits_end_one_request_and_its_blocks_are_not_cached():
    bench = Bench(make_scheduler())
    bad, good = make_request("bad", list(range(10)), 6), make_request("good", [9] * 10, 6)
    bench.add(bad, good)
    outputs = bench.complete(bench.schedule(), {0: "non-finite logits"})
    assert [(o.request, o.token_id, o.finish_reason) for o in outputs] == [
        (good, good.token_ids[-1], None),
        (bad, None, FinishReason.ERROR),
    ]
    assert bad.error == "non-finite logits"
    assert bad.output_token_ids == []
    again = make_request("again", list(range(10)), 6)
    bench.add(again)
    bench.run()
    assert again.num_cached_tokens == 0
    bench.assert_as_alone(good, again)


def test_a_request_that_errs_late_drops_the_keys_of_all_its_blocks():
    bench = Bench(make_scheduler())
    bad = make_request("bad", list(range(10)), 20)
    bench.add(bad)
    for _ in range(4):
        bench.step()
    assert bench.scheduler.pool.num_cached_prefixes == 3
    bench.complete(bench.schedule(), {0: "non-finite logits"})
    assert bench.scheduler.pool.num_cached_prefixes == 0


def test_blocks_of_non_finite_kv_are_cleared_before_they_are_used_again():
    bench = Bench(make_scheduler())
    bad, good = make_request("bad", [1] * 10, 6), make_request("good", [9] * 10, 6)
    bench.add(bad, good)
    so = bench.schedule()
    held = list(bad.block_ids)
    bench.complete(so, {0: "NaN"})
    after = bench.schedule()
    assert sorted(after.blocks_to_clear) == sorted(held)
    assert bench.complete(after)
    assert bench.schedule().blocks_to_clear == ()


def test_an_error_that_says_nothing_of_the_kv_leaves_the_keys():
    bench = Bench(make_scheduler())
    bad = make_request("bad", list(range(10)), 6)
    bench.add(bad)
    so = bench.schedule()
    bench.scheduler.update_from_output(so, output_of(so, [3], {0: "a processor"}, bad_kv=()))
    assert bench.scheduler.pool.num_cached_prefixes == 2
    again = make_request("again", list(range(10)), 6)
    bench.add(again)
    assert bench.schedule().blocks_to_clear == ()
    assert again.num_cached_tokens == 8


def test_a_failed_step_spares_requests_that_were_not_in_it():
    bench = Bench(make_scheduler(max_num_seqs=1))
    first, waiting = make_request("a", [1] * 5, 3), make_request("b", [2] * 5, 3)
    bench.add(first, waiting)
    outputs = bench.fail(bench.schedule())
    assert [o.request for o in outputs] == [first]
    bench.run()
    bench.assert_as_alone(waiting)


def test_generated_tokens_are_cached_too():
    bench = Bench(make_scheduler())
    first = make_request("a", [1] * 3, 10)
    bench.add(first)
    bench.run()
    more = make_request("b", [*first.token_ids, 7], 2)
    bench.add(more)
    bench.run()
    assert more.num_cached_tokens == 12, "13 tokens, the last of them never ran"
    bench.assert_as_alone(first, more)


def test_one_token_of_a_prompt_is_always_computed():
    bench = Bench(make_scheduler())
    for name, cached in (("a", 0), ("b", 4)):
        request = make_request(name, list(range(8)), 1)
        bench.add(request)
        bench.run()
        assert request.num_cached_tokens == cached
        bench.assert_as_alone(request)


def test_prompt_logprobs_read_nothing_from_the_cache_but_fill_it():
    bench = Bench(make_scheduler())
    for name, wanted, cached in (("a", None, 0), ("b", 0, 0), ("c", None, 8)):
        request = make_request(name, list(range(10)), 2, prompt_logprobs=wanted)
        bench.add(request)
        bench.run()
        assert request.num_cached_tokens == cached
    stats = bench.scheduler.stats
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (20, 8)
    assert stats.prefix_hit_rate == 0.4


def test_nothing_is_shared_where_caching_is_off():
    bench = Bench(make_scheduler(prefix_caching=False))
    a, b = make_request("a", list(range(10)), 3), make_request("b", list(range(10)), 3)
    bench.add(a, b)
    bench.run()
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 0)
    assert a.block_keys == []
    assert bench.scheduler.stats.prefix_query_tokens == 0
    bench.assert_as_alone(a, b)


def test_keys_are_made_once_each_and_only_for_full_blocks(monkeypatch):
    made = []
    key = BlockHasher.key
    monkeypatch.setattr(
        BlockHasher, "key", lambda self, *parts: made.append(parts) or key(self, *parts)
    )
    bench = Bench(make_scheduler())
    request = make_request("a", list(range(10)), 11)
    bench.add(request)
    for _ in range(8):
        bench.step()
    bench.scheduler._state.preempt(request.row, "test")
    bench.scheduler._state.close_gaps()
    bench.run()
    assert len(made) == len(set(made)) == len(request.block_keys) == 5, "20 of 21 tokens ran"


def test_reset_prefix_cache():
    bench = Bench(make_scheduler())
    first, second = make_request("a", list(range(10)), 3), make_request("b", list(range(10)), 3)
    bench.add(first)
    bench.step()
    assert bench.scheduler.reset_prefix_cache() is False
    bench.run()
    assert bench.scheduler.reset_prefix_cache() is True
    bench.add(second)
    bench.run()
    assert second.num_cached_tokens == 0
    bench.assert_as_alone(first, second)
