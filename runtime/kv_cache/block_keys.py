"""BlockHasher: the key of a full block, a hash over its parent's key, its token ids and what else
changes K/V.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from runtime.data.request import ExtraKey
from runtime.errors import ConfigError


def _xxh3_128(data: bytes) -> bytes:
    import xxhash  # where another hash is chosen, it need not be installed

    return xxhash.xxh3_128_digest(data)


HASHES: dict[str, Callable[[bytes], bytes]] = {
    "xxh3_128": _xxh3_128,
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
ROOT_KEY = b""
"""Stands for the parent of a first block."""


def frame(*parts: bytes) -> bytes:
    """Joins parts so that no two different lists of parts give the same bytes: each after its
    length (uint32).
    """
    return b"".join([struct.pack("<I", len(part)) + part for part in parts])


NO_EXTRA: Mapping[int, bytes] = MappingProxyType({})


def encode_extra_keys(keys: Iterable[ExtraKey], block_size: int) -> Mapping[int, bytes]:
    """Block index -> what its key takes beside parent and tokens; blocks that take nothing are
    left out.

    A key counts in the block where it starts, and by the chain of parents in every later one.
    """
    found: dict[int, bytes] = {}
    for key in sorted(keys, key=lambda key: (key.start, key.name)):
        part = frame(key.name.encode(), key.value.encode(), struct.pack("<q", key.start))
        index = key.start // block_size
        found[index] = found.get(index, b"") + part
    return found or NO_EXTRA


class BlockHasher:
    """Keys for blocks of one size by one hash.

    Raises:
        ConfigError: for an unknown hash name.
    """

    def __init__(self, block_size: int, hash_name: str) -> None:
        if hash_name not in HASHES:
            raise ConfigError(f"cache.hash: unknown {hash_name!r}; allowed: {', '.join(HASHES)}")
        self.block_size = block_size
        self._digest = HASHES[hash_name]
        self._pack = struct.Struct(f"<{block_size}i").pack
        self._later_head = struct.pack("<I", len(self._digest(b"")))
        self._later_middle = struct.pack("<I", 4 * block_size)
        self._later_end = struct.pack("<I", 0)

    def pack(self, token_ids: Sequence[int], index: int) -> bytes:
        """The token ids of full block `index`, as bytes of little-endian int32."""
        start = index * self.block_size
        return self._pack(*token_ids[start : start + self.block_size])

    def key(self, parent_key: bytes, tokens: bytes, extra: bytes) -> bytes:
        """The key of one block: `tokens` from `pack`, `extra` its own of `encode_extra_keys`."""
        if (
            parent_key and not extra
        ):  # nearly always: the same bytes as below, at a third of the cost
            middle = self._later_middle
            return self._digest(self._later_head + parent_key + middle + tokens + self._later_end)
        return self._digest(frame(parent_key, tokens, extra))
