"""Steps that are made while the tokens of the one before are not known yet."""

import pytest

from runtime.data.request import FinishReason
from runtime.scheduler.ahead import NEEDS_BLOCKS, NEEDS_TOKENS

from .fake import expected, make_request, make_scheduler, next_token
from .fake_ahead import AheadBench
from .test_walk import CONFIGS, MAX_MODEL_LEN, NUM_STEPS, Walk


def make_bench(**config) -> AheadBench:
    return AheadBench(make_scheduler(runs_ahead=True, **config))


def test_a_token_is_run_before_it_is_known():
    bench = make_bench()
    a, b = make_request("a", [1] * 3, 4), make_request("b", [2] * 70, 1)
    bench.scheduler._state.max_model_len = 99
    bench.add(a, b)
    first, second = bench.launch(), bench.launch()
    assert first.feeds is None
    assert first.samples.tolist() == [True, False]
    assert second.feeds.tolist() == [True, False]
    assert second.num_computed_tokens.tolist() == [3, 61]
    assert second.num_scheduled_tokens.tolist() == [1, 9]
    assert second.samples.tolist() == [True, True]
    assert a.output_token_ids == []
    assert bench.scheduler.stats.steps_ahead == 1


def test_without_running_ahead_a_request_sits_out():
    bench = AheadBench(make_scheduler())
    bench.add(make_request("a", [1] * 3, 4))
    assert bench.launch().num_reqs == 1
    assert bench.launch().num_reqs == 0
    assert bench.scheduler.stats.steps_ahead == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_no_token_is_run_past_the_limit(max_tokens):
    bench = make_bench()
    request = make_request("a", [1] * 3, max_tokens, ignore_eos=True)
    long = make_request("b", [2] * 60, 50)
    bench.add(request, long)
    bench.run()
    bench.assert_as_alone(request, long)
    assert len(long.token_ids) == 64
    assert sum(so.num_tokens for so in bench.steps) == 3 + max_tokens - 1 + 63


def test_the_step_behind_a_stop_is_dropped():
    bench = make_bench()
    stop = expected(make_request("", [1] * 3, 9), 64)[0][2]
    request = make_request("a", [1] * 3, 9, stop_token_ids=(stop,))
    bench.add(request)
    outputs = [bench.step() for _ in range(5)]
    bench.assert_as_alone(request)
    assert [len(out) for out in outputs] == [0, 1, 1, 1, 0]
    assert [so.num_tokens for so in bench.steps] == [3, 1, 1, 1], "one step too many, and no more"
    assert bench.scheduler.pool.num_used_blocks == 0
    other = make_request("b", [5] * 3, 9)
    bench.add(other)
    bench.run()
    bench.assert_as_alone(other)


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"bad_words": ("x",)},
        {"structured_output": {"choice": ["a"]}},
        {"logprobs": 0},
        {"logits_processors": (lambda ids, logits: logits,)},
    ],
)
def test_requests_that_need_their_tokens_make_everyone_wait(params):
    bench = make_bench(max_num_batched_tokens=5)
    needy, plain = make_request("a", [1] * 7, 3, **params), make_request("b", [2] * 3, 3)
    bench.add(needy, plain)
    assert bench.launch().num_tokens == 5
    assert bench.launch().samples.tolist() == [True, True], "no token of it was unknown"
    bench.collect()
    assert bench.launch().num_reqs == 0
    assert bench.scheduler.stats.wait_reasons == {NEEDS_TOKENS: 1}
    bench.collect()
    assert bench.launch().num_reqs == 2
    bench.run()
    bench.assert_as_alone(needy, plain)


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
def test_nobody_is_preempted_ahead_of_a_step_that_may_free_blocks(policy):
    bench = make_bench(num_blocks=3, max_model_len=12, policy=policy)
    a, b = make_request("a", [1] * 4, 5), make_request("b", [2] * 7, 1)
    bench.add(a, b)
    assert bench.launch().num_reqs == 2
    assert bench.scheduler.pool.num_free_blocks == 0
    assert bench.launch().num_reqs == 0
    assert bench.scheduler.stats.wait_reasons == {NEEDS_BLOCKS: 1}
    bench.collect()
    assert b.is_finished
    bench.run()
    assert bench.scheduler.stats.preemptions == 0
    bench.assert_as_alone(a, b)


def test_a_block_gets_its_key_when_its_last_token_is_known():
    bench = make_bench()
    bench.add(make_request("a", [1] * 3, 9))
    first = bench.launch()
    second = bench.launch()
    pool, block_ids = bench.scheduler.pool, first.new_rows[0].block_ids
    assert second.num_computed_tokens.tolist() == [3], "this step fills the block"
    assert pool.key_of(block_ids[0]) is None
    bench.collect()
    assert pool.key_of(block_ids[0]) is not None
    bench.fail_all()
    assert pool.key_of(block_ids[0]) is None, "the step that should have filled it failed"


def test_a_step_that_fails_takes_those_behind_it():
    """The second request found the blocks that the first one's step was to fill."""
    bench = make_bench()
    a, b = make_request("a", [1] * 9, 9), make_request("b", [1] * 9 + [2], 9)
    bench.add(a)
    bench.launch()
    bench.add(b)
    bench.launch()
    assert b.num_cached_tokens == 8
    outputs = bench.fail_all()
    assert [o.finish_reason for o in outputs] == [FinishReason.ERROR] * 2
    again = make_request("c", [1] * 9 + [3], 9)
    bench.add(again)
    bench.run()
    assert again.num_cached_tokens == 0
    bench.assert_as_alone(again)


def test_an_unknown_token_of_a_preempted_request_is_sampled_again():
    bench = make_bench()
    request = make_request("a", [1] * 3, 9)
    bench.add(request)
    bench.launch()
    bench.scheduler._state.preempt(request.row, "test")
    bench.scheduler._state.close_gaps()
    assert bench.launch().new_rows[0].token_ids == [1] * 3
    assert bench.collect() == []
    assert bench.collect()[0].token_id == next_token((1, 1, 1))
    bench.run()
    bench.assert_as_alone(request)


def test_a_token_that_was_fed_wrong_is_run_again():
    bench = make_bench()
    late, other = make_request("a", [1] * 3, 6), make_request("b", [2] * 3, 6)
    bench.add(late, other)
    bench.launch(late=[0])
    assert bench.launch().feeds.tolist() == [True, True]
    assert [o.request for o in bench.collect()] == [late, other]
    again = bench.launch()
    assert again.num_computed_tokens.tolist() == [3, 4]
    assert again.feeds.tolist() == [False, True]
    assert [o.request for o in bench.collect()] == [other], "what it was fed wrong is void"
    bench.run()
    bench.assert_as_alone(late, other)


def test_a_launch_that_fails_ends_those_that_it_would_have_fed_wrong_too():
    """The runner may never hear of the blocks that they got in it."""
    bench = make_bench()
    late, other = make_request("a", [1] * 4, 6), make_request("b", [2] * 3, 6)
    bench.add(late, other)
    bench.launch(late=[0])
    ahead = bench.schedule()
    assert ahead.new_block_ids
    bench.collect()
    outputs = bench.fail(ahead, "before")
    assert [o.finish_reason for o in outputs] == [FinishReason.ERROR] * 2


class AheadWalk(Walk):
    """The walk, with a step in flight, and tokens that are settled late."""

    def __init__(self, seed: int, **config) -> None:
        super().__init__(seed, **config)
        self.bench = make_bench(max_model_len=MAX_MODEL_LEN, **config)
        self.counts |= dict.fromkeys(("late", "failed launch"), 0)

    def step(self) -> None:
        rng, bench = self.rng, self.bench
        if rng.random() < 0.6 and len(self.live) < 12:
            self.add()
        if rng.random() < 0.03:
            self.abort("in-flight abort" if bench.flights else "abort")
        if rng.random() < 0.02 and bench.scheduler.num_running:
            state = bench.scheduler._state
            state.preempt(int(rng.choice(state.order)), "test")
            state.close_gaps()
            bench.scheduler.check_integrity()
            self.counts["preempt"] += 1
        if rng.random() < 0.05:
            self.counts["reset"] += bench.scheduler.reset_prefix_cache()
        launched = self.launch()
        self.check_append_only()
        if bench.flights and rng.random() < 0.02:
            self.counts["failed"] += 1
            bench.fail_all()
        while len(bench.flights) > launched:
            self.collect()
        self.check_cached_content()
        self.settle()

    def launch(self) -> bool:
        rng, bench = self.rng, self.bench
        so = bench.schedule()
        if not so.num_reqs:
            assert bench.flights or not bench.scheduler.has_unfinished(), "nothing runs"
            return False
        if rng.random() < 0.02:
            self.counts["failed launch"] += 1
            while bench.flights:
                self.collect()
            bench.fail(so, rng.choice(["before", "half-way"]))
            return False
        num_sampled = int(so.samples.sum())
        late = [i for i in range(num_sampled) if rng.random() < 0.03]
        self.counts["late"] += len(late)
        bench.flights.append(bench.runner.launch(so, late))
        return True

    def collect(self) -> None:
        num_sampled = len(self.bench.flights[0].positions)
        errors = {}
        if num_sampled and self.rng.random() < 0.02:
            errors = {self.rng.randrange(num_sampled): "non-finite logits"}
            self.counts["error"] += 1
        self.bench.collect(errors)


@pytest.mark.parametrize("index", range(len(CONFIGS)))
def test_random_walk_ahead(index):
    walk = AheadWalk(100 + index, **CONFIGS[index])
    for _ in range(max(1, NUM_STEPS // len(CONFIGS))):
        walk.step()
    walk.bench.run()
    walk.settle()
    stats = walk.bench.scheduler.stats
    assert not walk.live
    assert walk.bench.scheduler.pool.num_used_blocks == 0
    assert len(walk.bench.finished) == walk.num_added
    assert walk.counts["whole"] > walk.num_added // 5
    assert stats.steps_ahead > stats.steps // 4
    if NUM_STEPS >= 1500:
        kinds = [kind for kind in walk.counts if kind not in ("reset", "abort")]
        assert min(walk.counts[kind] for kind in kinds) > 0, walk.counts
        assert stats.preemptions > walk.counts["preempt"]
        assert stats.wait_reasons[NEEDS_BLOCKS] > 0
    print(index, walk.counts, stats)
