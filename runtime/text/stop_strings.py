"""StopStrings: cuts a stream of text at the first stop string, wherever tokens end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_FIRST, _INSIDE = 1, 2


class StopStrings:
    """An Aho-Corasick automaton over the characters of one text.

    The first stop string to be complete ends the text; of several complete at once, the longest.
    The cut therefore depends on the characters alone, never on how they were split. Only text that
    can still become a stop string is held back, and work is linear in the text.

    Special tokens may be hidden: matched, and not shown. A stop string counts where it stands in
    the shown text, and where it stands in the whole with each hidden token in it or out of it
    entirely.

    Args:
        stops: non-empty strings; none at all lets every text pass.
        include: whether the stop string stays in the text; then all of it is shown.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._include = include
        self._nodes = _build(stops)
        self._in_whole = self._in_shown = 0
        """States of the automaton, over the whole text and over what is shown of it."""
        self._held = ""
        self._hidden = bytearray()
        """For each character of `_held`: 0 shown, else hidden; _FIRST begins a hidden token."""
        self._is_over = False

    def push(self, text: str, armed: bool = True, hidden: bool = False) -> tuple[str, str | None]:
        """Take new text.

        Args:
            armed: when false, stop strings that end in this text do not count.
            hidden: whether this is a token that is matched and not shown.

        Returns:
            The text that may be shown, and the stop string that ended it or None. After a stop
            string nothing more comes.
        """
        if self._is_over:
            return "", None
        first = len(self._held)
        self._held += text
        self._hidden += _flags(len(text), hidden)
        for end, char in enumerate(text, start=first + 1):
            self._in_whole = self._next(self._in_whole, char)
            if not hidden:
                self._in_shown = self._next(self._in_shown, char)
            match, start = self._match(end, hidden)
            if match is not None and armed:
                shown = self._shown(start) + (self._held[start:end] if self._include else "")
                self._is_over, self._held = True, ""
                return shown, match
        return self._release(), None

    def finish(self) -> str:
        """The text that was held back: no stop string came of it."""
        held = "" if self._is_over else self._shown(len(self._held))
        self._held, self._is_over = "", True
        return held

    def _match(self, end: int, hidden: bool) -> tuple[str | None, int]:
        """The longest stop string that ends before `end`, and where it begins."""
        whole = self._whole_match(end, hidden)
        shown = None if hidden else self._nodes[self._in_shown].match
        if shown is not None and len(shown) > len(whole or ""):
            return shown, self._back(end, len(shown))
        return whole, end - len(whole or "")

    def _whole_match(self, end: int, hidden: bool) -> str | None:
        if hidden and end < len(self._held):
            return None  # inside a hidden token
        state = self._in_whole
        while (match := self._nodes[state].match) is not None:
            if self._hidden[end - len(match)] != _INSIDE:
                return match
            state = self._shorter(state, len(match))
        return None

    def _shorter(self, state: int, length: int) -> int:
        """The longest suffix of a state that is under `length`."""
        while (match := self._nodes[state].match) is not None and len(match) >= length:
            state = self._nodes[state].fallback
        return state

    def _release(self) -> str:
        """What can no longer become part of a stop string, and is to be shown."""
        end = len(self._held)
        in_whole = end - self._nodes[self._in_whole].open_len
        in_shown = self._back(end, self._nodes[self._in_shown].open_len)
        cut = min(in_whole, in_shown)
        text = self._shown(cut)
        self._held, self._hidden = self._held[cut:], self._hidden[cut:]
        return text

    def _back(self, end: int, num_shown: int) -> int:
        """Where the last `num_shown` shown characters before `end` begin."""
        if not any(self._hidden):
            return end - num_shown
        while num_shown:
            end -= 1
            num_shown -= not self._hidden[end]
        return end

    def _shown(self, end: int) -> str:
        text = self._held[:end]
        if not any(self._hidden):
            return text
        return "".join(c for c, h in zip(text, self._hidden, strict=False) if not h)

    def _next(self, state: int, char: str) -> int:
        nodes = self._nodes
        while state and char not in nodes[state].children:
            state = nodes[state].fallback
        return nodes[state].children.get(char, 0)


def _flags(length: int, hidden: bool) -> bytes:
    return bytes(length) if not hidden else bytes([_FIRST] + [_INSIDE] * (length - 1))[:length]


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
