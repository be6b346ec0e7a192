"""Finds calls of tools in a model's text, as it comes; a parser for each way of writing them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `arguments` is JSON."""

    name: str
    arguments: str


Piece = str | Call
"""Text for the reader, or a call."""


class ToolParser(Protocol):
    """Of one answer. What may still become a call is held back."""

    def push(self, text: str) -> list[Piece]:
        """Take what is new."""

    def finish(self) -> list[Piece]:
        """What was held back; nothing follows."""


class Hermes:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, beside text: Qwen, Hermes."""

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._text = ""
        self._is_inside = False

    def push(self, text: str) -> list[Piece]:
        self._text += text
        found: list[Piece] = []
        while True:
            mark = self._CLOSE if self._is_inside else self._OPEN
            before, is_there, after = self._text.partition(mark)
            if not is_there:
                break
            found += self._calls(before) if self._is_inside else _shown(before.rstrip())
            self._is_inside, self._text = not self._is_inside, after
        if not self._is_inside:
            free = self._text[: _sure(self._text, self._OPEN)].rstrip()
            found += _shown(free)
            self._text = self._text[len(free) :]
        return found

    def finish(self) -> list[Piece]:
        text, self._text = self._text, ""
        return self._calls(text) if self._is_inside else _shown(text)

    def _calls(self, text: str) -> list[Piece]:
        return calls_of(text) or [self._OPEN + text]


class Whole:
    """Calls that are all of the answer, from where it begins with one of `openings`.

    Args:
        openings: texts; the first character of the answer that is no space begins one of them, or
            it is text.
        marks: those of the openings that are no part of the calls.
    """

    def __init__(self, openings: Sequence[str], marks: Sequence[str] = ()) -> None:
        self._openings, self._marks = openings, marks
        self._text = ""
        self._is_plain = False

    def push(self, text: str) -> list[Piece]:
        self._text += text
        begun = self._text.lstrip()
        if any(begun.startswith(o[: len(begun)]) for o in self._openings) and not self._is_plain:
            return []
        self._is_plain = True
        found, self._text = _shown(self._text), ""
        return found

    def finish(self) -> list[Piece]:
        text, self._text = self._text, ""
        inside = text.strip()
        for mark in self._marks:
            inside = inside.removeprefix(mark)
        return calls_of(inside) or _shown(text)


class Arguments:
    """The arguments of the one function that must be called, which come piece by piece."""

    def __init__(self, name: str) -> None:
        self.name = name

    def push(self, text: str) -> list[Piece]:
        return [Call("", text)] if text else []

    def finish(self) -> list[Piece]:
        return []


PARSERS: dict[str, Callable[[], ToolParser]] = {
    "hermes": Hermes,
    "llama": lambda: Whole(("{", "<|python_tag|>"), ("<|python_tag|>",)),
    "mistral": lambda: Whole(("[TOOL_CALLS]",), ("[TOOL_CALLS]",)),
}
"""By their names in `server.tool_parser`."""

SIGNS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": '"parameters":'}
"""What the chat template of a model holds that writes its calls so."""


def parser_of_template(template: str) -> str | None:
    """The name of the parser for what the template teaches; None where none fits."""
    return next((name for name, sign in SIGNS.items() if sign in template), None)


def calls_of(text: str) -> list[Piece]:
    """The calls in JSON texts, one after the other or in a list; none where anything else is."""
    decoder, found, place = json.JSONDecoder(), [], 0
    text = text.strip()
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            found += value if isinstance(value, list) else [value]
            while place < len(text) and text[place] in "; \n\r\t":
                place += 1
    except (ValueError, RecursionError):
        return []
    calls = [_call_of(value) for value in found]
    return [] if None in calls else [call for call in calls if call is not None]


def _call_of(value: Any) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return Call(value["name"], arguments)
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def _shown(text: str) -> list[Piece]:
    return [text] if text else []


def _sure(text: str, mark: str) -> int:
    """How many characters of the text cannot be the beginning of the mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return len(text) - length
    return len(text)
