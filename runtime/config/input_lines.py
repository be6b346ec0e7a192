"""JSONL files of requests: a request per line, or what is wrong with the line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from runtime.config.encodings import other_encoding
from runtime.config.problems import Problem, dotted, problems_of, unknown_name
from runtime.config.schema import RequestConfig
from runtime.data.params import SamplingParams
from runtime.errors import ConfigError

_OWN_FIELDS = tuple(RequestConfig.model_fields)
_SAMPLING_FIELDS = tuple(f.name for f in fields(SamplingParams) if f.name != "logits_processors")
"""Logits processors are functions, which no file can hold."""
_OPENAI_NAME_OF_CHAT = "messages"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not empty; without a request, `error` says why, and where."""

    number: int
    """Counted from 1."""
    request: RequestConfig | None
    id: str | int | None
    """What the line calls itself, where that could be read."""
    error: str | None = None


def name_of_input(path: str) -> str:
    """As messages call it."""
    return "<stdin>" if path == "-" else path


def read_lines(path: str, flag: str = "--input") -> Iterator[InputLine]:
    """The requests of a file, or of standard input.

    Args:
        flag: that named the file, for messages.

    Raises:
        ConfigError: it cannot be read.
    """
    name = name_of_input(path)
    for number, line in enumerate(read_utf8(path, flag).splitlines(), start=1):
        if line.strip():
            values: dict[str, Any] = {}
            try:
                values = parse_object(line, "a JSON object with prompt, chat or token_ids")
                request = _request_of(values)
                yield InputLine(number, request, request.id)
            except (ConfigError, ValueError, RecursionError) as error:
                its_id = values.get("id")
                its_id = its_id if type(its_id) in (str, int) else None
                yield InputLine(number, None, its_id, f"{name}:{number}: {error}")


def read_utf8(path: str, flag: str) -> bytes:
    """The whole of a file, or of standard input.

    Args:
        flag: that named the file, for messages.

    Raises:
        ConfigError: it cannot be read, or is in UTF-16 or UTF-32.
    """
    name = name_of_input(path)
    try:
        if path == "-":
            whole = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                whole = file.read()
    except OSError as error:
        raise ConfigError(f"{flag} {name}: cannot be read: {error.strerror}") from None
    encoding = other_encoding(whole)
    if encoding:
        raise ConfigError(
            f"{flag} {name}: is in {encoding} and must be in UTF-8; try: "
            f"iconv -f {encoding} -t UTF-8"
        )
    return whole


def parse_object(line: bytes, what: str) -> dict[str, Any]:
    """One line of JSONL.

    Args:
        what: it must be, for the message.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"no valid UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"no valid JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"must be {what}")
    return values


def _request_of(values: dict[str, Any]) -> RequestConfig:
    """Of prompt, chat (or messages) or token_ids, and sampling fields beside them or in `sampling`.

    Raises:
        ConfigError: it is no request; the text says why.
    """
    values = _with_chat(values)
    for name in values:
        if name not in _OWN_FIELDS and name not in _SAMPLING_FIELDS:
            raise ConfigError(f"{name}: {unknown_name(name, [*_OWN_FIELDS, *_SAMPLING_FIELDS])}")
    own = {name: value for name, value in values.items() if name in _OWN_FIELDS}
    beside = {name: value for name, value in values.items() if name in _SAMPLING_FIELDS}
    inside = own.get("sampling", {})
    if isinstance(inside, dict):
        own["sampling"] = {**inside, **beside}
    try:
        return RequestConfig.model_validate(own)
    except ValidationError as error:
        problems = problems_of(error, RequestConfig, own)
        raise ConfigError("; ".join(_in_words(p, beside) for p in problems)) from None


def _with_chat(values: dict[str, Any]) -> dict[str, Any]:
    if _OPENAI_NAME_OF_CHAT not in values:
        return values
    if "chat" in values:
        raise ConfigError("chat and messages are the same; give one of them")
    return {"chat" if k == _OPENAI_NAME_OF_CHAT else k: v for k, v in values.items()}


def _in_words(problem: Problem, beside: dict[str, Any]) -> str:
    key = problem.key
    if key[:1] == ("sampling",) and len(key) > 1 and key[1] in beside:
        key = key[1:]
    return f"{dotted(key)}: {problem.message}" if key else problem.message
