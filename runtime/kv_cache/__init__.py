"""Block accounting and the prefix cache: ids and counts, no tensors."""

from runtime.kv_cache.block_keys import BlockHasher
from runtime.kv_cache.block_pool import (
    NULL_BLOCK,
    NUM_RESERVED_BLOCKS,
    TRASH_BLOCK,
    BlockPool,
    PrefixHit,
)
from runtime.kv_cache.prefix_cache import CachedPrefix

__all__ = [
    "NULL_BLOCK",
    "NUM_RESERVED_BLOCKS",
    "TRASH_BLOCK",
    "BlockHasher",
    "BlockPool",
    "CachedPrefix",
    "PrefixHit",
]
