"""Order of the queue, admission, prefill_first."""

import random

import pytest

from runtime.data.request import FinishReason
from runtime.errors import ConfigError
from runtime.scheduler.waiting import FcfsQueue, PriorityQueue

from .fake import Bench, make_request, make_scheduler


def admitted(bench):
    return [new.request_id for so in bench.steps for new in so.new_rows]


def test_prefill_first_never_mixes():
    bench = Bench(make_scheduler(policy="prefill_first", max_num_batched_tokens=16))
    requests = [make_request(str(i), [i] * 7, 3) for i in range(3)]
    bench.add(*requests[:1])
    bench.step()
    bench.add(*requests[1:])
    bench.run()
    assert [so.num_scheduled_tokens.tolist() for so in bench.steps] == [
        [7],
        [7, 7],
        [1, 1, 1],
        [1, 1, 1],
    ]
    assert bench.scheduler.stats.mixed_steps == 0
    bench.assert_as_alone(*requests)


def test_prefill_first_keeps_a_prompt_whole_unless_it_exceeds_the_budget():
    bench = Bench(make_scheduler(policy="prefill_first", max_num_batched_tokens=16))
    requests = [make_request("a", [1] * 10, 2), make_request("b", [2] * 10, 2)]
    requests.append(make_request("c", [3] * 37, 2))
    bench.add(*requests)
    bench.run()
    assert [so.num_scheduled_tokens.tolist() for so in bench.steps] == [
        [10],
        [10],
        [16],
        [16],
        [5],
        [1, 1, 1],
    ]
    bench.assert_as_alone(*requests)


def test_prefill_first_decodes_when_the_next_prompt_lacks_blocks():
    bench = Bench(make_scheduler(policy="prefill_first", num_blocks=6, max_model_len=24))
    a, b = make_request("a", [1] * 14, 4), make_request("b", [2] * 12, 4)
    bench.add(a, b)
    bench.run()
    assert bench.steps[1].num_scheduled_tokens.tolist() == [1]
    bench.assert_as_alone(a, b)


def test_waiting_is_strictly_in_order():
    bench = Bench(make_scheduler(num_blocks=6, max_model_len=24))
    first = make_request("a", [1] * 10, 6)
    big, small = make_request("big", [2] * 20, 2), make_request("small", [3], 1)
    bench.add(first, big, small)
    bench.run()
    assert admitted(bench) == ["a", "big", "small"]
    bench.assert_as_alone(first, big, small)


def test_priority_orders_the_queue_then_arrival():
    bench = Bench(make_scheduler(order="priority", max_num_seqs=1))
    for name, priority, arrival in (("d", 2, 0.0), ("b", 1, 2.0), ("a", 0, 9.0), ("c", 1, 3.0)):
        bench.add(make_request(name, [1], 1, priority=priority, arrival_s=arrival))
    bench.run()
    assert admitted(bench) == ["a", "b", "c", "d"]


def test_rows_limit_how_many_run():
    bench = Bench(make_scheduler(max_num_seqs=3))
    bench.add(*[make_request(str(i), [i], 4) for i in range(7)])
    bench.run()
    assert max(so.num_reqs for so in bench.steps) == 3


@pytest.mark.parametrize(("watermark", "count"), [(0.0, 4), (0.2, 3), (0.26, 2), (0.6, 1)])
def test_watermark_keeps_blocks_free_at_admission(watermark, count):
    bench = Bench(make_scheduler(num_blocks=8, max_model_len=32, watermark=watermark))
    bench.add(*[make_request(str(i), [i] * 7, 1) for i in range(4)])
    assert bench.schedule().num_reqs == count
    bench.complete(bench.steps[-1])


@pytest.mark.case("SC11")
def test_watermark_never_stops_a_lone_request():
    bench = Bench(make_scheduler(num_blocks=8, max_model_len=33, watermark=0.9))
    requests = [make_request(str(i), [i] * 28, 3) for i in range(3)]
    bench.add(*requests)
    bench.run()
    bench.assert_as_alone(*requests)


@pytest.mark.case("SC11")
@pytest.mark.parametrize("seed", range(3))
def test_waiting_work_always_moves(seed):
    """200 requests, random aborts, 12 blocks; a step without progress ends the test (Bench.run)."""
    rng = random.Random(seed)
    bench = Bench(
        make_scheduler(num_blocks=12, max_model_len=48, max_num_batched_tokens=8, max_num_seqs=6)
    )
    requests = [
        make_request(str(i), [rng.randrange(3) for _ in range(rng.randint(1, 40))], 8)
        for i in range(200)
    ]
    bench.add(*requests)
    for _ in range(5000):
        if not bench.scheduler.has_unfinished():
            break
        before = len(bench.steps)
        bench.step()
        assert len(bench.steps) > before
        if rng.random() < 0.05:
            bench.finish(str(rng.randrange(200)))
    assert len(bench.finished) == 200
    done = [r for r in requests if r.finish_reason is not FinishReason.ABORT]
    assert len(done) > 100
    bench.assert_as_alone(*done)


def test_a_hit_in_the_free_list_counts_as_a_block_to_take():
    """6 blocks, 3 in use; the prompt takes 3, of which 2 are cached: it just fits."""
    bench = Bench(make_scheduler(num_blocks=6, max_model_len=24))
    bench.add(make_request("old", [5] * 9, 1))
    bench.run()
    bench.add(make_request("busy", [1] * 11, 4))
    bench.step()
    assert bench.scheduler.pool.num_used_blocks == 3
    again = make_request("again", [5] * 10, 2)
    bench.add(again)
    so = bench.schedule()
    assert [new.request_id for new in so.new_rows] == ["again"]
    assert again.num_cached_tokens == 8
    bench.complete(so)
    bench.run()


def test_a_hit_in_the_free_list_does_not_count_as_free_besides():
    bench = Bench(make_scheduler(num_blocks=6, max_model_len=24))
    bench.add(make_request("old", [5] * 9, 1))
    bench.run()
    bench.add(make_request("busy", [1] * 15, 4))
    bench.step()
    assert bench.scheduler.pool.num_free_blocks == 2
    bench.add(make_request("again", [5] * 10, 2))  # 2 cached and free, and 1 more
    assert bench.schedule().num_reqs == 1
    bench.complete(bench.steps[-1])
    bench.run()


def test_a_blocked_head_is_not_looked_up_again_until_enough_has_changed(monkeypatch):
    bench = Bench(make_scheduler(num_blocks=20, max_model_len=80, max_num_seqs=4))
    running = make_request("a", [1] * 16, 40)
    head = make_request("head", [2] * 70, 4)
    bench.add(running)
    bench.step()
    bench.add(head)
    looked = []
    find = bench.scheduler.pool.find_prefix
    monkeypatch.setattr(bench.scheduler.pool, "find_prefix", lambda r: looked.append(r) or find(r))
    for _ in range(8):
        bench.step()
    assert looked == [head]
    monkeypatch.undo()
    bench.run()
    bench.assert_as_alone(running, head)


def test_a_blocked_head_is_admitted_as_soon_as_it_fits():
    """The same steps as a scheduler that looks every time."""
    rng = random.Random(5)
    prompts = [[rng.randrange(2) for _ in range(rng.randint(1, 30))] for _ in range(60)]
    plan = [(prompt, rng.randint(1, 9)) for prompt in prompts]
    logs = []
    for forgets in (True, False):
        bench = Bench(make_scheduler(num_blocks=9, max_model_len=36))
        bench.add(*[make_request(str(i), prompt, n) for i, (prompt, n) in enumerate(plan)])
        while bench.scheduler.has_unfinished():
            if forgets:
                bench.scheduler._admission._blocked = None
            bench.step()
        logs.append([(so.rows.tolist(), so.num_scheduled_tokens.tolist()) for so in bench.steps])
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_blocks": 3, "max_model_len": 14}, r"cache\.num_blocks: 3 .*needs 13.*at least 4"),
        (
            {"chunked_prefill": False, "long_prefill_token_threshold": 4},
            r"long_prefill_token_threshold: 4 .*chunked_prefill",
        ),
        ({"chunked_prefill": False, "max_num_batched_tokens": 63}, r"max_num_batched_tokens: 63"),
    ],
)
def test_limits_under_which_nothing_could_run_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        make_scheduler(**values)


@pytest.mark.parametrize("queue_type", [FcfsQueue, PriorityQueue])
def test_queues_keep_order_over_random_removal(queue_type):
    rng = random.Random(3)
    queue, model = queue_type(), []
    for number in range(2000):
        choice = rng.random()
        if choice < 0.5 or not model:
            request = make_request(
                str(number), [1], priority=rng.randrange(3), arrival_s=float(number)
            )
            queue.add(request)
            model.append(request)
        elif choice < 0.6:
            request = rng.choice(model)
            model.remove(request)
            queue.remove(request)
            queue.put_back(request)
            model.insert(0, request)
        else:
            request = queue.head() if choice < 0.7 else rng.choice(model)
            model.remove(request)
            queue.remove(request)
        if queue_type is PriorityQueue:
            model.sort(key=lambda r: (r.priority, r.arrival_s))
        assert list(queue) == model
        assert len(queue) == len(model)
        assert not model or queue.head() is model[0]
    if queue_type is PriorityQueue:
        assert len(queue._heap) <= max(17, 2 * len(queue) + 1)
