"""PrefixCache: which blocks hold which prefix. Keys find a prefix; its content is compared before
it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.kv_cache.block_keys import ROOT_KEY, BlockHasher


class CachedPrefix:
    """One full block of tokens after one parent: what a key stands for.

    The parent is held as an object, not as a key, so that equality with a request's own chain is
    exact, by induction from the root, whatever the hash does.
    """

    __slots__ = ("block_ids", "extra", "key", "parent", "tokens")

    def __init__(
        self, key: bytes, parent: CachedPrefix | None, tokens: bytes, extra: bytes
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.extra = extra
        self.block_ids: list[int] = []
        """Every block with this content; more than one when it was computed twice."""

    def is_same(self, parent: CachedPrefix, tokens: bytes, extra: bytes) -> bool:
        return self.parent is parent and self.tokens == tokens and self.extra == extra


class PrefixCache:
    """The map from keys to cached prefixes, and from blocks back to theirs."""

    def __init__(self, hasher: BlockHasher, num_blocks: int) -> None:
        """num_blocks counts block ids, reserved ones included."""
        self.root = CachedPrefix(ROOT_KEY, None, b"", b"")
        self._hasher = hasher
        self._by_key: dict[bytes, CachedPrefix] = {}
        self._of_block: list[CachedPrefix | None] = [None] * num_blocks

    def __len__(self) -> int:
        return len(self._by_key)

    def of_block(self, block_id: int) -> CachedPrefix | None:
        """The prefix whose key the block carries."""
        return self._of_block[block_id]

    def find(
        self,
        token_ids: list[int],
        block_keys: list[bytes],
        max_blocks: int,
        extra: Mapping[int, bytes],
    ) -> list[CachedPrefix]:
        """The longest cached chain over the first `max_blocks` blocks of `token_ids`.

        Args:
            block_keys: the keys already known of these blocks; extended in place as far as the walk
                needs.
            extra: of `encode_extra_keys`.
        """
        parent, chain = self.root, []
        for index in range(max_blocks):
            if index == len(block_keys):
                self._extend_keys(block_keys, token_ids, extra)
            found = self._by_key.get(block_keys[index])
            if found is None or not found.is_same(
                parent, self._hasher.pack(token_ids, index), extra.get(index, b"")
            ):
                break
            chain.append(found)
            parent = found
        return chain

    def register(
        self,
        block_id: int,
        index: int,
        parent: CachedPrefix,
        token_ids: list[int],
        block_keys: list[bytes],
        extra: Mapping[int, bytes],
    ) -> CachedPrefix | None:
        """Gives a block the key of block `index` of `token_ids`; its parent's key must be known.

        Returns:
            the prefix, to be the parent of the next block; None where the key already stands for
            other content (a hash collision): then the block carries no key, and no later block of
            the request may.
        """
        assert self._of_block[block_id] is None, f"block {block_id} already carries a key"
        own_extra = extra.get(index, b"")
        tokens = self._hasher.pack(token_ids, index)
        if index == len(block_keys):
            block_keys.append(self._hasher.key(parent.key, tokens, own_extra))
        key = block_keys[index]
        prefix = self._by_key.get(key)
        if prefix is not None and not self._is_reachable(prefix):
            self._remove(prefix)
            prefix = None
        if prefix is None:
            prefix = self._by_key[key] = CachedPrefix(key, parent, tokens, own_extra)
        elif not prefix.is_same(parent, tokens, own_extra):
            return None
        prefix.block_ids.append(block_id)
        self._of_block[block_id] = prefix
        return prefix

    def drop(self, block_id: int) -> None:
        """Takes the block's key away, if it carries one."""
        prefix = self._of_block[block_id]
        if prefix is None:
            return
        self._of_block[block_id] = None
        prefix.block_ids.remove(block_id)
        if not prefix.block_ids:
            del self._by_key[prefix.key]

    def clear(self) -> None:
        self._by_key.clear()
        self._of_block = [None] * len(self._of_block)

    def check_integrity(self) -> None:
        """Map and blocks name each other; no prefix is without a block."""
        for key, prefix in self._by_key.items():
            assert prefix.key == key, "prefix cache: an entry stands under another's key"
            assert prefix.block_ids, "prefix cache: an entry without blocks"
            for block_id in prefix.block_ids:
                assert self._of_block[block_id] is prefix, f"block {block_id}: wrong entry"
        carried = sum(prefix is not None for prefix in self._of_block)
        listed = sum(len(prefix.block_ids) for prefix in self._by_key.values())
        assert carried == listed, f"prefix cache: {carried} blocks carry keys, {listed} are listed"

    def _is_reachable(self, prefix: CachedPrefix) -> bool:
        """Whether `find` can come to it: its parent may have lost its blocks, and been made anew as
        another object.
        """
        parent = prefix.parent
        return parent is self.root or (
            parent is not None and self._by_key.get(parent.key) is parent
        )

    def _remove(self, prefix: CachedPrefix) -> None:
        for block_id in list(prefix.block_ids):
            self.drop(block_id)

    def _extend_keys(
        self, block_keys: list[bytes], token_ids: list[int], extra: Mapping[int, bytes]
    ) -> None:
        index = len(block_keys)
        parent_key = block_keys[-1] if index else ROOT_KEY
        tokens = self._hasher.pack(token_ids, index)
        block_keys.append(self._hasher.key(parent_key, tokens, extra.get(index, b"")))
