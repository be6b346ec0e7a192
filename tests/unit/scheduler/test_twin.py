"""The fast path by arrays against its slow twin, one row after another."""

import random

import numpy as np
import pytest

from runtime.kv_cache import BlockPool
from runtime.scheduler import scheduler as scheduler_module
from runtime.scheduler.rows import RowTable
from runtime.scheduler.running import take_by_arrays, take_in_order

from .fake import Bench, make_request, make_scheduler

CONFIGS = [
    {"num_blocks": 128, "max_num_batched_tokens": 9},
    {"num_blocks": 128, "max_num_batched_tokens": 64, "long_prefill_token_threshold": 3},
    {"num_blocks": 17, "max_num_batched_tokens": 7},
    {"num_blocks": 17, "max_num_batched_tokens": 64, "order": "priority"},
    {"num_blocks": 17, "max_num_batched_tokens": 20, "policy": "prefill_first"},
    {"num_blocks": 17, "max_num_batched_tokens": 3, "max_num_seqs": 12},
]


def assert_equal(fast, slow):
    assert fast.step_id == slow.step_id
    for name in ("rows", "num_scheduled_tokens", "num_computed_tokens", "samples"):
        left, right = getattr(fast, name), getattr(slow, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right, err_msg=name)
    assert fast.freed_rows == slow.freed_rows
    assert fast.new_rows == slow.new_rows
    assert fast.new_block_ids == slow.new_block_ids


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(4))
def test_both_give_the_same_steps(config, seed, monkeypatch):
    rng = random.Random(seed)
    benches = Bench(make_scheduler(**config)), Bench(make_scheduler(**config))
    take, refused = scheduler_module.take_by_arrays, []

    def schedule(bench, is_fast):
        chosen = take if is_fast else lambda *_: None
        monkeypatch.setattr(
            scheduler_module,
            "take_by_arrays",
            lambda *args: chosen(*args) or refused.append(is_fast),
        )
        return bench.schedule()

    number = 0
    while number < 40 or benches[0].scheduler.has_unfinished():
        while number < 40 and rng.random() < 0.4:
            fields = {"priority": rng.randrange(3), "arrival_s": float(number)}
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 40))]
            for bench in benches:
                bench.add(make_request(str(number), prompt, 1 + number % 20, **fields))
            number += 1
        outputs = [schedule(benches[0], True), schedule(benches[1], False)]
        assert_equal(*outputs)
        for bench, so in zip(benches, outputs, strict=True):
            if so.num_reqs:
                bench.complete(so)
        if rng.random() < 0.03:
            gone = str(rng.randrange(40))
            for bench in benches:
                bench.finish(gone)
    fast, slow = (bench.scheduler for bench in benches)
    assert fast.stats == slow.stats
    assert refused.count(False) > refused.count(True)
    if config["num_blocks"] == 128:
        assert not refused.count(True)
        assert not fast.stats.preemptions


@pytest.mark.case("SC15")
def test_both_leave_the_last_token_of_a_request_out():
    """At the limit, with as many known tokens as it may have: the last one is never run."""
    table, pool = RowTable(2), BlockPool(8, 4)
    for length in (9, 5):
        request = make_request(str(length), [1] * length, 1)
        row = table.take(request, 0, 64)
        request.block_ids = pool.allocate(3)
        table.capacity[row] = 12
        table.num_tokens[row] = table.limit[row]
    rows = np.arange(2)
    fast = take_by_arrays(table, pool, rows, 64, 64)
    slow = take_in_order(table, pool, rows, 64, 64, lambda _: 0, lambda _: None)
    assert fast.num_scheduled.tolist() == slow.num_scheduled.tolist() == [9, 5]
