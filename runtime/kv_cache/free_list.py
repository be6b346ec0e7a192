"""FreeBlockList: the blocks nobody references, least recently used first."""

from __future__ import annotations

from collections.abc import Iterator

_NOT_HERE = -1


class FreeBlockList:
    """An intrusive doubly linked list over block ids: append, pop and removal from the middle are
    O(1).

    The links live in two lists indexed by block id; index `num_blocks` is the sentinel that closes
    the ring.
    """

    def __init__(self, num_blocks: int, first: int = 0) -> None:
        """Holds block ids first..num_blocks-1, in order."""
        self._next = [_NOT_HERE] * (num_blocks + 1)
        self._prev = [_NOT_HERE] * (num_blocks + 1)
        self._sentinel = num_blocks
        self._next[num_blocks] = self._prev[num_blocks] = num_blocks
        self._len = 0
        for block_id in range(first, num_blocks):
            self.append(block_id)

    def __len__(self) -> int:
        return self._len

    def __contains__(self, block_id: int) -> bool:
        return self._next[block_id] != _NOT_HERE

    def __iter__(self) -> Iterator[int]:
        block_id = self._next[self._sentinel]
        while block_id != self._sentinel:
            yield block_id
            block_id = self._next[block_id]

    def append(self, block_id: int) -> None:
        """Put a block at the most recently used end."""
        end, last = self._sentinel, self._prev[self._sentinel]
        self._next[last] = self._prev[end] = block_id
        self._prev[block_id], self._next[block_id] = last, end
        self._len += 1

    def remove(self, block_id: int) -> None:
        """Take a block out, wherever it is."""
        before, after = self._prev[block_id], self._next[block_id]
        self._next[before], self._prev[after] = after, before
        self._next[block_id] = self._prev[block_id] = _NOT_HERE
        self._len -= 1

    def pop_front(self, count: int) -> list[int]:
        """Take the `count` least recently used blocks; there must be as many."""
        assert count <= self._len, f"{count} blocks asked of {self._len} free ones"
        taken = []
        block_id = self._next[self._sentinel]
        for _ in range(count):
            taken.append(block_id)
            after = self._next[block_id]
            self._next[block_id] = self._prev[block_id] = _NOT_HERE
            block_id = after
        self._next[self._sentinel], self._prev[block_id] = block_id, self._sentinel
        self._len -= count
        return taken

    def check_integrity(self) -> None:
        """Both directions name the same blocks, as many as the length says."""
        forward = list(self)
        backward = []
        block_id = self._prev[self._sentinel]
        while block_id != self._sentinel:
            backward.append(block_id)
            block_id = self._prev[block_id]
        assert forward == backward[::-1], "free list: forward and backward links disagree"
        assert len(forward) == self._len, f"free list: {len(forward)} linked, length {self._len}"
        linked = sum(link != _NOT_HERE for link in self._next) - 1
        assert linked == self._len, f"free list: {linked} blocks carry links, length {self._len}"
