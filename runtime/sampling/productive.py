"""Whether a Lark grammar can ever end: a rule that needs itself on every way matches no text.

llguidance finds grammars that no first token fits; those that go on for ever are found here. What
this reader does not know (embedded JSON, lexer options) is taken to be able to end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|->\s*\w+)
    |(?P<text>"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\])+/[a-z]*|<[^>\s]*>|\.\.)
    |(?P<name>[?!]?[A-Za-z_]\w*)
    |(?P<times>~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*\d*\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[:|()?*+]|\[|\])""",
    re.VERBOSE,
)
_RULE = re.compile(r"^\s*[?!]?([A-Za-z_]\w*)(?:\.-?\d+)?(?:\[[^\]\n]*\])?\s*:", re.MULTILINE)

Test = Callable[[set[str]], bool]
"""Given the rules known to end -> whether an expression can end."""


def can_end(lark: str, start: str = "start") -> bool:
    """False only where no text matches the grammar, since every way from `start` is endless."""
    body = "\n".join(x for x in lark.splitlines() if not x.startswith(("%llguidance", "%ignore")))
    starts = list(_RULE.finditer(body))
    rules: dict[str, Test] = {}
    for rule, following in zip(starts, [*starts[1:], None], strict=True):
        text = body[rule.end() : following.start() if following else len(body)]
        try:
            rules[rule[1]] = _Reader(text).expression()
        except _UnknownSyntaxError:
            return True
    ending = _undefined(body, rules)
    while found := {name for name, test in rules.items() if name not in ending and test(ending)}:
        ending |= found
    return start in ending or start not in rules


def _undefined(body: str, rules: dict[str, Test]) -> set[str]:
    return {m["name"].lstrip("?!") for m in _TOKEN.finditer(body) if m["name"]} - rules.keys()


def _ends_with(name: str) -> Test:
    return lambda ending: name in ending


def _always(ending: set[str]) -> bool:
    return True


class _UnknownSyntaxError(Exception):
    pass


class _Reader:
    """Reads one rule's expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise _UnknownSyntaxError
            if match.lastgroup != "skip":
                self._tokens.append((str(match.lastgroup), match[0]))
            at = match.end()
        self._at = 0

    def expression(self, closing: str = "") -> Test:
        ways: list[list[Test]] = [[]]
        while (token := self._next()) != ("mark", closing):
            if token is None:
                if closing:
                    raise _UnknownSyntaxError
                break
            if token == ("mark", "|"):
                ways.append([])
            else:
                ways[-1].append(self._item(*token))
        return lambda ending: any(all(item(ending) for item in way) for way in ways)

    def _item(self, kind: str, text: str) -> Test:
        test: Test = _always
        if kind == "name":
            test = _ends_with(text.lstrip("?!"))
        elif text == "(":
            test = self.expression(")")
        elif text == "[":
            self.expression("]")
        elif kind != "text":
            raise _UnknownSyntaxError
        while self._peek_repeats():
            _, mark = self._tokens[self._at]
            self._at += 1
            if mark in "?*" or re.match(r"[~{]\s*(0|[,}])", mark):
                test = _always
        return test

    def _peek_repeats(self) -> bool:
        if self._at == len(self._tokens):
            return False
        kind, text = self._tokens[self._at]
        return kind == "times" or (kind == "mark" and text in "?*+")

    def _next(self) -> tuple[str, str] | None:
        if self._at == len(self._tokens):
            return None
        self._at += 1
        return self._tokens[self._at - 1]
