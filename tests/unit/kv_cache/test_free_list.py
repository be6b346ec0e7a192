import random
from collections import deque

import pytest

from runtime.kv_cache.free_list import FreeBlockList


def test_starts_in_order_without_reserved_blocks():
    free = FreeBlockList(6, first=2)
    assert list(free) == [2, 3, 4, 5]
    assert len(free) == 4
    assert 1 not in free
    assert 5 in free


def test_agrees_with_a_deque_over_random_operations():
    rng = random.Random(1)
    free, model = FreeBlockList(20, first=2), deque(range(2, 20))
    out: list[int] = []
    for _ in range(3000):
        choice = rng.random()
        if choice < 0.4 and out:
            block_id = out.pop(rng.randrange(len(out)))
            free.append(block_id)
            model.append(block_id)
        elif choice < 0.7 and model:
            count = rng.randint(0, min(4, len(model)))
            taken = free.pop_front(count)
            assert taken == [model.popleft() for _ in range(count)]
            out += taken
        elif model:
            block_id = rng.choice(model)
            free.remove(block_id)
            model.remove(block_id)
            out.append(block_id)
        free.check_integrity()
        assert list(free) == list(model)


def test_taking_more_than_there_is_is_a_bug():
    with pytest.raises(AssertionError, match="4 blocks asked of 3"):
        FreeBlockList(5, first=2).pop_front(4)


def test_check_integrity_sees_a_broken_link():
    free = FreeBlockList(6, first=2)
    free._next[3] = 5
    with pytest.raises(AssertionError, match="disagree"):
        free.check_integrity()
