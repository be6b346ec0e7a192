"""Budgets and chunks."""

import pytest

from runtime.data.request import FinishReason

from .fake import Bench, chunks_of, make_request, make_scheduler, output_of


@pytest.mark.case("SC01")
def test_a_step_of_unfinished_chunks_samples_nothing():
    bench = Bench(
        make_scheduler(
            block_size=256, num_blocks=64, max_model_len=2048, max_num_batched_tokens=256
        )
    )
    request = make_request("a", [i % 7 for i in range(1000)], max_tokens=1)
    bench.add(request)
    for expected_count in (256, 256, 256):
        so = bench.schedule()
        assert so.num_scheduled_tokens.tolist() == [expected_count]
        assert so.samples.tolist() == [False]
        assert bench.scheduler.update_from_output(so, output_of(so, [])) == []
    so = bench.schedule()
    assert so.num_scheduled_tokens.tolist() == [232]
    assert so.samples.tolist() == [True]


@pytest.mark.case("SC02")
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 7, 8, 9, 16, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 17])
def test_any_chunk_size_gives_the_tokens_of_a_whole_prompt(budget, length):
    """Chunks beside decodes; exact multiples of budget and block; a budget that runs out at 0."""
    bench = Bench(make_scheduler(max_num_batched_tokens=budget))
    requests = [make_request(str(i), [i + 1] * length, max_tokens=3 + i) for i in range(3)]
    bench.add(requests[0])
    bench.step()
    bench.add(*requests[1:])
    bench.run()
    bench.assert_as_alone(*requests)


@pytest.mark.case("SC02")
def test_a_decode_beside_an_unfinished_chunk_samples_the_decode_only():
    bench = Bench(make_scheduler(max_num_batched_tokens=4))
    a, b = make_request("a", [1, 2, 3], 5), make_request("b", list(range(10)), 2)
    bench.add(a, b)
    so = bench.schedule()
    assert so.num_scheduled_tokens.tolist() == [3, 1]
    assert so.samples.tolist() == [True, False]
    bench.complete(so)
    so = bench.schedule()
    assert so.num_scheduled_tokens.tolist() == [1, 3]
    assert so.samples.tolist() == [True, False]
    outputs = bench.complete(so)
    assert [output.request for output in outputs] == [a]
    bench.run()
    bench.assert_as_alone(a, b)


@pytest.mark.case("SC13")
def test_a_prompt_one_below_the_limit_yields_one_token():
    bench = Bench(make_scheduler(max_model_len=64, max_num_batched_tokens=16))
    long = make_request("long", [i % 9 for i in range(63)], max_tokens=16)
    short = [make_request(str(i), [i, i, 5], max_tokens=6) for i in range(3)]
    bench.add(short[0], long, *short[1:])
    bench.run()
    assert len(long.output_token_ids) == 1
    assert long.finish_reason is FinishReason.LENGTH
    bench.assert_as_alone(long, *short)


@pytest.mark.case("SC15")
def test_the_last_token_needs_no_slot():
    bench = Bench(make_scheduler(block_size=16, num_blocks=1, max_model_len=17))
    request = make_request("a", list(range(15)), max_tokens=2)
    bench.add(request)
    bench.run()
    assert len(request.output_token_ids) == 2
    assert request.num_preemptions == 0
    assert bench.scheduler.stats.blocks_used_peak == 1
    assert bench.scheduler.stats.scheduled_tokens == 16
    bench.assert_as_alone(request)


@pytest.mark.case("SC15")
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize("prompt", [1, 3, 4])
def test_a_pool_of_exactly_the_blocks_needed_serves(num_blocks, prompt):
    limit = num_blocks * 4 + 1
    bench = Bench(make_scheduler(num_blocks=num_blocks, max_model_len=limit))
    request = make_request("a", [2] * prompt, max_tokens=99)
    bench.add(request)
    bench.run()
    assert request.num_tokens == limit
    assert request.num_preemptions == 0
    bench.assert_as_alone(request)


@pytest.mark.case("SC17")
def test_integrity_holds_between_the_chunks_of_a_request():
    bench = Bench(make_scheduler(max_num_batched_tokens=4, prefix_caching=False))
    a, b = make_request("a", [1, 2], 8), make_request("b", list(range(11)), 2)
    bench.add(a, b)
    bench.step()  # checks
    assert bench.scheduler.pool.num_used_blocks == len(a.block_ids) + len(b.block_ids) == 4
    bench.step()
    assert bench.scheduler.pool.num_used_blocks == 4
    bench.run()
    assert bench.scheduler.pool.num_used_blocks == 0


@pytest.mark.case("SC19")
def test_every_prompt_counts_against_the_budget():
    bench = Bench(make_scheduler(max_num_batched_tokens=16, max_num_seqs=16))
    requests = [make_request(str(i), [i] * 10, max_tokens=1) for i in range(10)]
    bench.add(*requests)
    bench.run()
    counts = [so.num_scheduled_tokens.tolist() for so in bench.steps]
    assert counts[:3] == [[10, 6], [4, 10, 2], [8, 8]]
    assert all(sum(step) <= 16 for step in counts)
    assert len(counts) == 7, "100 tokens, 16 a step"


def test_the_long_prefill_cap_leaves_budget_to_others():
    bench = Bench(make_scheduler(max_num_batched_tokens=16, long_prefill_token_threshold=6))
    bench.add(make_request("a", [1] * 14, 2), make_request("b", [2] * 14, 2))
    assert bench.schedule().num_scheduled_tokens.tolist() == [6, 6]
    bench.complete(bench.steps[-1])
    bench.add(make_request("c", [3] * 5, 2))
    assert bench.schedule().num_scheduled_tokens.tolist() == [6, 6, 4]
    bench.complete(bench.steps[-1])
    bench.run()
    assert chunks_of(bench, row=0)[:3] == [6, 6, 2]


def test_without_chunks_a_prompt_waits_until_it_fits_whole():
    bench = Bench(
        make_scheduler(chunked_prefill=False, max_num_batched_tokens=20, max_model_len=20)
    )
    requests = [make_request(str(i), [i] * 12, max_tokens=3) for i in range(3)]
    bench.add(*requests)
    bench.run()
    assert [so.num_scheduled_tokens.tolist() for so in bench.steps] == [
        [12],
        [1, 12],
        [1, 1, 12],
        [1, 1],
        [1],
    ]
    bench.assert_as_alone(*requests)


def test_without_chunks_the_queue_stays_in_order():
    bench = Bench(
        make_scheduler(chunked_prefill=False, max_num_batched_tokens=20, max_model_len=20)
    )
    bench.add(make_request("a", [1] * 12, 2), make_request("b", [2] * 12, 2))
    bench.add(make_request("c", [3] * 3, 2))
    assert [new.request_id for new in bench.schedule().new_rows] == ["a"]


def test_counts_of_steps():
    bench = Bench(make_scheduler(max_num_batched_tokens=8))
    bench.add(make_request("a", [1] * 8, 4), make_request("b", [2] * 8, 2))
    bench.run()
    stats = bench.scheduler.stats
    assert [so.num_scheduled_tokens.tolist() for so in bench.steps] == [[8], [1, 7], [1, 1], [1, 1]]
    assert stats.steps == 4
    assert stats.mixed_steps == 2, "a last chunk of one token is no decode"
    assert stats.scheduled_tokens == 20
    assert stats.blocks_used == 0
    assert stats.blocks_used_peak == 6
    assert stats.num_blocks == 64


def test_an_idle_scheduler_makes_an_empty_step():
    bench = Bench(make_scheduler())
    so = bench.scheduler.schedule()
    assert so.num_reqs == so.num_tokens == 0
    assert not bench.scheduler.has_unfinished()
    assert bench.scheduler.stats.steps == 0
