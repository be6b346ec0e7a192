"""A seeded random walk over everything that can happen, checked after every step.

STEPGRAPH_TEST_WALK_STEPS sets the number of steps over all configurations.
"""

import os
import random

import pytest

from runtime.data.request import FinishReason

from .fake import Bench, make_request, make_scheduler

CONFIGS = [
    {"num_blocks": 12, "max_num_batched_tokens": 8},
    {"num_blocks": 11, "max_num_batched_tokens": 64, "order": "priority"},
    {"num_blocks": 14, "max_num_batched_tokens": 16, "policy": "prefill_first"},
    {"num_blocks": 14, "max_num_batched_tokens": 41, "chunked_prefill": False},
    {"num_blocks": 20, "max_num_batched_tokens": 6, "prefix_caching": False, "max_num_seqs": 3},
    {
        "num_blocks": 13,
        "max_num_batched_tokens": 32,
        "watermark": 0.2,
        "long_prefill_token_threshold": 5,
        "hash_name": "sha256",
        "order": "priority",
        "policy": "prefill_first",
    },
]
MAX_MODEL_LEN = 41
NUM_STEPS = int(os.environ.get("STEPGRAPH_TEST_WALK_STEPS", "1500"))


class Walk:
    def __init__(self, seed: int, **config) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(make_scheduler(max_model_len=MAX_MODEL_LEN, **config))
        self.live = []
        self.num_added = 0
        self.blocks_seen = {}
        self.counts = dict.fromkeys(
            ("whole", "abort", "in-flight abort", "failed", "error", "preempt", "reset"), 0
        )
        self.prefixes = [[self.rng.randrange(4) for _ in range(30)] for _ in range(3)]

    def add(self) -> None:
        rng = self.rng
        prompt = rng.choice(self.prefixes)[: rng.randint(0, 30)]
        prompt = prompt + [rng.randrange(4) for _ in range(rng.randint(1, 10))]
        request = make_request(
            str(self.num_added),
            prompt,
            rng.randint(1, 25),
            priority=rng.randrange(3),
            cache_salt=rng.choice([None, None, None, "s"]),
            eos_token_ids=(rng.randrange(50), rng.randrange(100)),
            stop_token_ids=tuple(rng.sample(range(50), rng.choice([0, 0, 0, 2, 20]))),
            min_tokens=rng.choice([0, 0, 1]),
            prompt_logprobs=rng.choice([None] * 9 + [0]),
        )
        self.num_added += 1
        self.live.append(request)
        self.bench.add(request)

    def step(self) -> None:
        rng, bench = self.rng, self.bench
        if rng.random() < 0.6 and len(self.live) < 12:
            self.add()
        if rng.random() < 0.03:
            self.abort("abort")
        if rng.random() < 0.02 and bench.scheduler.num_running:
            state = bench.scheduler._state
            state.preempt(int(rng.choice(state.order)), "test")
            state.close_gaps()
            bench.scheduler.check_integrity()
            self.counts["preempt"] += 1
        if rng.random() < 0.05:
            self.counts["reset"] += bench.scheduler.reset_prefix_cache()
        so = bench.schedule()
        if not so.num_reqs:
            assert not bench.scheduler.has_unfinished(), "work waits and nothing runs"
            return
        self.check_append_only()
        if rng.random() < 0.03:
            self.abort("in-flight abort")
        if rng.random() < 0.02:
            bench.fail(so, rng.choice(["before", "half-way"]))
            self.counts["failed"] += 1
        else:
            num_sampled = int(so.samples.sum())
            errors = {}
            if num_sampled and rng.random() < 0.02:
                errors = {rng.randrange(num_sampled): "non-finite logits"}
                self.counts["error"] += 1
            bench.complete(so, errors)
        self.check_cached_content()
        self.settle()

    def abort(self, kind: str) -> None:
        if self.live:
            self.bench.finish(self.rng.choice(self.live).request_id)
            self.counts[kind] += 1

    def settle(self) -> None:
        """Checks those that ended against the oracle."""
        for request in [r for r in self.live if r.is_finished]:
            self.live.remove(request)
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.bench.assert_as_alone(request)
                self.counts["whole"] += 1

    def check_append_only(self) -> None:
        table = self.bench.scheduler._state.table
        now = {}
        for row in self.bench.scheduler._state.order.tolist():
            key = (row, int(table.epoch[row]))
            blocks = list(table.requests[row].block_ids)
            before = self.blocks_seen.get(key, [])
            assert blocks[: len(before)] == before, "block ids changed while running"
            now[key] = blocks
        self.blocks_seen = now

    def check_cached_content(self) -> None:
        """Every block with a key holds K/V of just the tokens that its key stands for."""
        cache, runner = self.bench.scheduler.pool._cache, self.bench.runner
        for prefix in cache._by_key.values():
            tokens, node = b"", prefix
            while node is not cache.root:
                tokens, node = node.tokens + tokens, node.parent
            ids = memoryview(tokens).cast("i").tolist()
            kept = [(token, position) for position, token in enumerate(ids)]
            for block_id in prefix.block_ids:
                for offset in range(4):
                    position = len(ids) - 4 + offset
                    slot = block_id * 4 + offset
                    assert runner.first[slot] == kept[position]
                    assert runner.second[slot] == hash(tuple(kept[: position + 1]))


@pytest.mark.parametrize("index", range(len(CONFIGS)))
def test_random_walk(index):
    walk = Walk(seed=index, **CONFIGS[index])
    for _ in range(max(1, NUM_STEPS // len(CONFIGS))):
        walk.step()
    walk.bench.run()
    walk.settle()
    assert not walk.live
    assert walk.bench.scheduler.pool.num_used_blocks == 0
    assert len(walk.bench.finished) == walk.num_added
    assert walk.counts["whole"] > walk.num_added // 4
    if NUM_STEPS >= 1500:
        assert min(walk.counts[kind] for kind in walk.counts if kind != "reset") > 0, walk.counts
        assert walk.bench.scheduler.stats.preemptions > walk.counts["preempt"]
    print(index, walk.counts, walk.bench.scheduler.stats)
