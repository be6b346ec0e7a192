"""StopStrings: cuts a stream of text at the first stop string, wherever tokens end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """An Aho-Corasick automaton over the characters of one text.

    The first stop string to be complete ends the text; of several complete at once, the longest.
    The cut therefore depends on the characters alone, never on how they were split. Only text that
    can still become a stop string is held back, and work is linear in the text.

    Args:
        stops: non-empty strings; none at all lets every text pass.
        include: whether the stop string stays in the text.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._include = include
        self._nodes = _build(stops)
        self._state = 0
        self._held = ""
        self._is_over = False

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Take new text.

        Args:
            armed: when false, stop strings that end in this text do not count.

        Returns:
            The text that may be shown, and the stop string that ended it or None. After a stop
            string nothing more comes.
        """
        if self._is_over:
            return "", None
        whole = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            self._state = self._next(char)
            match = self._nodes[self._state].match
            if match is not None and armed:
                self._is_over, self._held = True, ""
                return whole[: end if self._include else end - len(match)], match
        cut = len(whole) - self._nodes[self._state].open_len
        self._held = whole[cut:]
        return whole[:cut], None

    def finish(self) -> str:
        """The text that was held back: no stop string came of it."""
        held, self._held, self._is_over = self._held, "", True
        return held

    def _next(self, char: str) -> int:
        nodes, state = self._nodes, self._state
        while state and char not in nodes[state].children:
            state = nodes[state].fallback
        return nodes[state].children.get(char, 0)


class _Node:
    """A prefix of some stop string."""

    __slots__ = ("children", "fallback", "match", "open_len")

    def __init__(self) -> None:
        self.children: dict[str, int] = {}
        self.fallback = 0
        """The longest proper suffix that is a prefix too."""
        self.match: str | None = None
        """The longest stop string that ends here."""
        self.open_len = 0
        """Length of the longest suffix that is a proper prefix: what must be held back."""


def _build(stops: Sequence[str]) -> list[_Node]:
    nodes = [_Node()]
    for stop in stops:
        state = 0
        for char in stop:
            if char not in nodes[state].children:
                nodes.append(_Node())
                nodes[state].children[char] = len(nodes) - 1
            state = nodes[state].children[char]
        nodes[state].match = stop
    _link(nodes)
    return nodes


def _link(nodes: list[_Node]) -> None:
    """Set fallback, match and open_len, nearest to the root first."""
    queue = deque((child, 0, char, 1) for char, child in nodes[0].children.items())
    while queue:
        index, parent, char, depth = queue.popleft()
        node = nodes[index]
        if parent:
            back = nodes[parent].fallback
            while back and char not in nodes[back].children:
                back = nodes[back].fallback
            node.fallback = nodes[back].children.get(char, 0)
        node.match = node.match or nodes[node.fallback].match
        node.open_len = depth if node.children else nodes[node.fallback].open_len
        queue.extend((child, index, c, depth + 1) for c, child in node.children.items())
