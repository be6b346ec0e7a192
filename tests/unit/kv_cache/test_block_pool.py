import pytest

import attention_backends
from runtime.data.params import SamplingParams
from runtime.data.request import Request
from runtime.kv_cache import NUM_RESERVED_BLOCKS, BlockPool, block_pool
from runtime.kv_cache import block_keys as keys_module

SIZE = 4


def make_pool(num_blocks: int = 8, caching: bool = True) -> BlockPool:
    return BlockPool(num_blocks + NUM_RESERVED_BLOCKS, SIZE, caching, "xxh3_128")


def held(pool: BlockPool, tokens: list[int], salt: str | None = None) -> Request:
    """A request that holds new blocks for its tokens, the full ones keyed."""
    request = Request("r", tokens, SamplingParams(), cache_salt=salt)
    request.block_ids = pool.allocate(-(-len(tokens) // SIZE))
    tail = pool.root
    for index in range(len(tokens) // SIZE):
        tail = pool.register(request, index, tail)
        if tail is None:
            break
    return request


def probe(tokens: list[int], salt: str | None = None) -> Request:
    return Request("p", tokens, SamplingParams(), cache_salt=salt)


@pytest.mark.parametrize("name", ["NULL_BLOCK", "TRASH_BLOCK", "NUM_RESERVED_BLOCKS"])
def test_the_pool_and_the_backends_reserve_the_same_blocks(name):
    # The pool must not import torch, so each side has its own constants.
    assert getattr(block_pool, name) == getattr(attention_backends, name)


def test_reserved_blocks_are_never_handed_out():
    pool = make_pool(3)
    assert pool.allocate(3) == [2, 3, 4]
    assert pool.num_free_blocks == 0
    assert pool.num_used_blocks == pool.num_usable_blocks == 3


def test_blocks_are_freed_last_first_and_reused_least_recently_used_first():
    pool = make_pool(6)
    first, second = pool.allocate(3), pool.allocate(2)
    pool.free(second)
    pool.free(first)
    assert pool.allocate(6) == [7, 6, 5, 4, 3, 2]


def test_freeing_twice_is_a_bug():
    pool = make_pool()
    block_ids = pool.allocate(1)
    pool.free(block_ids)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(block_ids)


def test_a_hit_leaves_one_token_to_compute():
    pool = make_pool()
    request = held(pool, list(range(8)))
    assert pool.find_prefix(probe(list(range(8)))).block_ids == request.block_ids[:1]
    assert pool.find_prefix(probe(list(range(9)))).block_ids == request.block_ids
    assert pool.find_prefix(probe(list(range(4)))).block_ids == []


def test_a_freed_block_keeps_its_key_until_it_is_reused():
    pool = make_pool(3)
    request = held(pool, list(range(9)))
    pool.free(request.block_ids)
    assert pool.find_prefix(probe(list(range(9)))).block_ids == [2, 3]
    pool.allocate(1)  # the unkeyed tail
    assert pool.find_prefix(probe(list(range(9)))).block_ids == [2, 3]
    pool.allocate(1)
    assert pool.find_prefix(probe(list(range(9)))).block_ids == [2]


def test_touch_takes_free_blocks_out_of_the_middle():
    pool = make_pool(5)
    block_ids = pool.allocate(5)
    pool.free(block_ids)
    assert pool.count_free([3, 4]) == 2
    pool.touch([3, 4])
    pool.touch([4])
    assert pool.count_free([3, 4]) == 0
    assert (pool.ref_count(3), pool.ref_count(4)) == (1, 2)
    pool.check_integrity([[3, 4], [4]])
    assert pool.allocate(3) == [6, 5, 2]


@pytest.mark.case("PC05")
def test_an_evicted_block_is_no_longer_found():
    pool = make_pool(3)
    request = held(pool, list(range(12)))
    pool.free(request.block_ids)
    assert len(pool.find_prefix(probe(list(range(13)))).block_ids) == 3
    pool.allocate(3)
    assert pool.find_prefix(probe(list(range(13)))).block_ids == []
    assert pool.num_cached_prefixes == 0


@pytest.mark.case("PC05")
def test_two_blocks_of_one_content_evict_one_keep_the_other():
    pool = make_pool(4)
    first, second = held(pool, list(range(4))), held(pool, list(range(4)))
    assert pool.key_of(first.block_ids[0]) == pool.key_of(second.block_ids[0]) is not None
    pool.free(first.block_ids)
    pool.allocate(3)  # evicts the first one's
    assert pool.key_of(first.block_ids[0]) is None
    assert pool.find_prefix(probe(list(range(5)))).block_ids == second.block_ids


def test_of_two_equal_blocks_the_one_in_use_is_hit():
    pool = make_pool(4)
    first, second = held(pool, list(range(4))), held(pool, list(range(4)))
    pool.free(first.block_ids)
    assert pool.find_prefix(probe(list(range(5)))).block_ids == second.block_ids


@pytest.mark.case("PC11")
def test_allocation_counts_blocks_and_never_overlaps():
    pool = make_pool(4)
    kept, cached = held(pool, [1] * 8), held(pool, [2] * 8)
    pool.free(cached.block_ids)
    first, second = pool.allocate(1), pool.allocate(1)
    assert sorted(first + second) == sorted(cached.block_ids)
    assert not set(first + second) & set(kept.block_ids)
    assert pool.num_free_blocks == 0
    pool.check_integrity([kept.block_ids, first, second])


@pytest.mark.case("PC07")
def test_salt_separates_from_the_first_block_on():
    pool = make_pool()
    tokens = list(range(12))
    request = held(pool, tokens, salt="s1")
    assert pool.find_prefix(probe(tokens, "s1")).block_ids == request.block_ids[:2]
    for salt in ("s2", "", None):
        assert pool.find_prefix(probe(tokens, salt)).block_ids == []


def test_same_tokens_after_another_parent_are_another_prefix():
    pool = make_pool()
    held(pool, [1, 1, 1, 1, 5, 5, 5, 5])
    other = held(pool, [2, 2, 2, 2])
    assert pool.find_prefix(probe([2, 2, 2, 2, 5, 5, 5, 5, 0])).block_ids == other.block_ids


@pytest.fixture
def colliding(monkeypatch):
    """A hash of one bit."""
    digest = lambda data: bytes([sum(data) & 1])  # noqa: E731
    monkeypatch.setitem(keys_module.HASHES, "xxh3_128", digest)


@pytest.mark.usefixtures("colliding")
def test_a_collision_is_a_miss_and_ends_the_chain():
    pool = make_pool(12)
    first = held(pool, [0, 0, 0, 0])
    pairs = [[a, a, a, b] for a in range(3) for b in range(4)]
    for tokens in pairs:
        found = pool.find_prefix(probe([*tokens, 9])).block_ids
        assert found == (first.block_ids if tokens == [0, 0, 0, 0] else [])
    clash = next(t for t in pairs[1:] if pool.register(held_raw(pool, t), 0, pool.root) is None)
    assert pool.find_prefix(probe([*clash, 9])).block_ids == []
    pool.check_integrity([first.block_ids, *([b] for b in range(3, 14) if pool.ref_count(b))])


def held_raw(pool: BlockPool, tokens: list[int]) -> Request:
    request = Request("r", tokens, SamplingParams())
    request.block_ids = pool.allocate(1)
    return request


@pytest.mark.usefixtures("colliding")
def test_no_hit_is_ever_wrong_whatever_the_hash():
    """Every block found holds just the tokens asked for, after the parents asked for."""
    import random

    rng = random.Random(0)
    pool = make_pool(10)
    content: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end
    live: list[Request] = []
    num_hits = 0
    for _ in range(4000):
        tokens = [rng.randrange(2) for _ in range(rng.choice([4, 8, 12]) + 1)]
        hit = pool.find_prefix(request := probe(tokens))
        for index, block_id in enumerate(hit.block_ids):
            assert content[block_id] == tuple(tokens[: (index + 1) * SIZE])
            num_hits += 1
        need = -(-len(tokens) // SIZE) - len(hit.block_ids)
        while need + pool.count_free(hit.block_ids) > pool.num_free_blocks:
            pool.free(live.pop(rng.randrange(len(live))).block_ids)
            hit = pool.find_prefix(request)
            need = -(-len(tokens) // SIZE) - len(hit.block_ids)
        pool.touch(hit.block_ids)
        request.block_ids = hit.block_ids + pool.allocate(need)
        tail = hit.tail
        for index in range(len(hit.block_ids), len(tokens) // SIZE):
            tail = pool.register(request, index, tail)
            if tail is None:
                break
            content[request.block_ids[index]] = tuple(tokens[: (index + 1) * SIZE])
        live.append(request)
        pool.check_integrity(r.block_ids for r in live)
    assert num_hits > 100


def test_dropped_keys_are_not_found_and_their_holders_keep_the_blocks():
    pool = make_pool()
    request = held(pool, list(range(8)))
    pool.drop_keys(request.block_ids)
    assert pool.find_prefix(probe(list(range(9)))).block_ids == []
    pool.check_integrity([request.block_ids])


def test_children_of_a_parent_made_anew_are_made_anew_and_found():
    pool = make_pool(num_blocks=12)
    tokens = list(range(12))
    old = held(pool, tokens)
    pool.drop_keys(old.block_ids[:1])  # the first block alone: its children are orphans
    assert pool.find_prefix(probe([*tokens, 99])).block_ids == []
    new = held(pool, tokens)
    assert pool.find_prefix(probe([*tokens, 99])).block_ids == new.block_ids
    pool.check_integrity([old.block_ids, new.block_ids])
    assert [pool.key_of(block_id) for block_id in old.block_ids] == [None] * 3


def test_reset_is_refused_while_blocks_are_in_use():
    pool = make_pool()
    request = held(pool, list(range(8)))
    assert pool.reset_prefix_cache() is False
    assert len(pool.find_prefix(probe(list(range(9)))).block_ids) == 2
    pool.free(request.block_ids)
    assert pool.reset_prefix_cache() is True
    assert pool.find_prefix(probe(list(range(9)))).block_ids == []
    assert pool.num_cached_prefixes == 0
    pool.check_integrity([])


def test_after_a_reset_memory_that_was_used_is_used_first():
    pool = make_pool(num_blocks=12)
    first = pool.allocate(3)
    pool.free(first)
    assert not set(pool.allocate(3)) & set(first), "keys are kept for as long as can be"
    pool = make_pool(num_blocks=12)
    pool.free(pool.allocate(3))
    assert pool.reset_prefix_cache() is True
    assert pool.allocate(3) == first
    pool.check_integrity([first])


def test_without_prefix_caching_nothing_is_found():
    pool = make_pool(caching=False)
    held(pool, list(range(8)))
    assert pool.find_prefix(probe(list(range(9)))).block_ids == []


def test_keys_are_computed_once_and_only_as_far_as_needed():
    pool = make_pool()
    request = probe(list(range(40)))
    pool.find_prefix(request)
    assert len(request.block_keys) == 1, "the first miss ends the walk"
    key = request.block_keys[0]
    pool.find_prefix(request)
    assert request.block_keys == [key]


def test_a_long_chain_is_let_go_without_recursion():
    pool = BlockPool(50_000 + NUM_RESERVED_BLOCKS, 1)
    request = Request("r", [0] * 50_000, SamplingParams())
    request.block_ids = pool.allocate(50_000)
    tail = pool.root
    for index in range(50_000):
        tail = pool.register(request, index, tail)
    pool.free(request.block_ids)
    assert pool.reset_prefix_cache()
    del tail
    assert pool.num_cached_prefixes == 0


@pytest.mark.parametrize("harm", ["ref", "key", "lost"])
def test_check_integrity_sees_harm(harm):
    pool = make_pool()
    request = held(pool, list(range(8)))
    if harm == "ref":
        pool._ref_counts[request.block_ids[0]] += 1
    elif harm == "key":
        pool._cache._of_block[request.block_ids[0]] = None
    else:
        pool._free.remove(9)
    with pytest.raises(AssertionError):
        pool.check_integrity([request.block_ids])
