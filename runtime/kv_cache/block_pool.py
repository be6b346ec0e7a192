"""BlockPool: who holds which KV block. Block ids and counts only; the tensors are the runner's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from runtime.data.request import ExtraKey, Request
from runtime.kv_cache.block_keys import NO_EXTRA, BlockHasher, encode_extra_keys
from runtime.kv_cache.free_list import FreeBlockList
from runtime.kv_cache.prefix_cache import CachedPrefix, PrefixCache

NULL_BLOCK = 0
"""All zeros, never written; what unused block-table entries and padding read."""
TRASH_BLOCK = 1
"""Where padding tokens write."""
NUM_RESERVED_BLOCKS = 2


class PrefixHit(NamedTuple):
    """Blocks that already hold the start of a request; not yet referenced for it."""

    block_ids: list[int]
    tail: CachedPrefix
    """The prefix of the last of them, or the root."""


class BlockPool:
    """Reference counts, the free list and the prefix cache over block ids 2..num_blocks_total-1.

    A block is referenced by each request that holds it, or free; a free block keeps its key until
    it is handed out.

    Attributes:
        num_changes: grows by one with each block that becomes free and each that is given a key.
            Between two moments, the number of blocks that a request lacks falls by at most this.
    """

    def __init__(
        self,
        num_blocks_total: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        hash_name: str = "xxh3_128",
    ) -> None:
        assert num_blocks_total > NUM_RESERVED_BLOCKS, "no usable block"
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_usable_blocks = num_blocks_total - NUM_RESERVED_BLOCKS
        self.num_changes = 0
        self._ref_counts = [0] * num_blocks_total
        self._free = FreeBlockList(num_blocks_total, first=NUM_RESERVED_BLOCKS)
        self._cache = PrefixCache(BlockHasher(block_size, hash_name), num_blocks_total)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        return self.num_usable_blocks - len(self._free)

    @property
    def num_cached_prefixes(self) -> int:
        return len(self._cache)

    @property
    def root(self) -> CachedPrefix:
        """The parent of every first block."""
        return self._cache.root

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def key_of(self, block_id: int) -> bytes | None:
        prefix = self._cache.of_block(block_id)
        return None if prefix is None else prefix.key

    def allocate(self, count: int) -> list[int]:
        """Takes the `count` least recently used free blocks, whose keys are lost; there must be as
        many.
        """
        block_ids = self._free.pop_front(count)
        for block_id in block_ids:
            self._cache.drop(block_id)
            self._ref_counts[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Adds a reference to each block, free or not."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                self._free.remove(block_id)
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Takes a reference from each block of a request, last first, so that the tail of a prefix
        is reused first.
        """
        for block_id in reversed(block_ids):
            assert self._ref_counts[block_id] > 0, f"block {block_id} freed twice"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)
                self.num_changes += 1

    def count_free(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks `touch` would take from the free list."""
        return sum(self._ref_counts[block_id] == 0 for block_id in block_ids)

    def shares_blocks_of(self, request: Request) -> bool:
        """Whether the request's full blocks get keys: with the prefix cache on, or among the
        samples of one prompt.
        """
        return self.enable_prefix_caching or request.sample_group is not None

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest run of blocks that holds the start of request.token_ids and leaves one token
        to compute.

        Computes request.block_keys as far as it needs them. References nothing.
        """
        if not self.shares_blocks_of(request):
            return PrefixHit([], self.root)
        chain = self._cache.find(
            request.token_ids,
            request.block_keys,
            (request.num_tokens - 1) // self.block_size,
            self._extra_keys(request),
        )
        block_ids = [self._pick(prefix) for prefix in chain]
        return PrefixHit(block_ids, chain[-1] if chain else self.root)

    def register(self, request: Request, index: int, parent: CachedPrefix) -> CachedPrefix | None:
        """Gives block `index` of a request its key; every token of it must be scheduled to be
        computed.

        Returns:
            the prefix, the parent of block `index + 1`; None after a hash collision: the request's
            chain ends here.
        """
        self.num_changes += 1
        return self._cache.register(
            request.block_ids[index],
            index,
            parent,
            request.token_ids,
            request.block_keys,
            self._extra_keys(request),
        )

    def drop_keys(self, block_ids: Iterable[int]) -> None:
        """Takes keys away from blocks whose content cannot be trusted; their holders keep them."""
        for block_id in block_ids:
            self._cache.drop(block_id)

    def reset_prefix_cache(self) -> bool:
        """Forgets every key; False, and nothing is done, while a block is referenced.

        Blocks are then taken in the order of their ids again, so that memory which was used before
        is used first: what was never touched has to be got from the system.
        """
        if self.num_used_blocks:
            return False
        self._cache.clear()
        self._free = FreeBlockList(len(self._ref_counts), first=NUM_RESERVED_BLOCKS)
        return True

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Asserts that free + referenced + reserved = all, and that counts equal the holders'
        lists.

        Args:
            holders: the block ids of every request that holds blocks.
        """
        self._free.check_integrity()
        self._cache.check_integrity()
        held = Counter(block_id for block_ids in holders for block_id in block_ids)
        for block_id, count in enumerate(self._ref_counts):
            assert count == held[block_id], f"block {block_id}: {count} refs, {held[block_id]} held"
            usable = block_id >= NUM_RESERVED_BLOCKS
            assert (block_id in self._free) == (usable and count == 0), (
                f"block {block_id} misplaced"
            )
            assert usable or self.key_of(block_id) is None, f"reserved block {block_id} has a key"
        assert len(self._free) + len(held) == self.num_usable_blocks, "blocks lost"

    def _extra_keys(self, request: Request) -> Mapping[int, bytes]:
        group = None if self.enable_prefix_caching else request.sample_group
        named = (("cache_salt", request.cache_salt), ("sample_group", group))
        whole = [ExtraKey(name, value) for name, value in named if value is not None]
        if not whole and not request.extra_keys:
            return NO_EXTRA
        return encode_extra_keys([*whole, *request.extra_keys], self.block_size)

    def _pick(self, prefix: CachedPrefix) -> int:
        """A block that is in use already, if there is one: it costs no free block."""
        ids = prefix.block_ids
        if len(ids) == 1:
            return ids[0]
        return next((block_id for block_id in ids if self._ref_counts[block_id]), ids[0])
