"""The two files of a batch, in OpenAI's format: each request is answered once, whatever happens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from runtime.errors import ConfigError

_MOST_SHOWN = 5
_ROW_BEGINS = b'{"id":"batch-'


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the input."""

    custom_id: str
    method: Any
    url: Any
    body: Any


def read_text(path: str) -> str:
    """Raises ConfigError: the input cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None


def read_input(text: str, path: str) -> list[Line]:
    """The requests of a file.

    Raises:
        ConfigError: lines that are no request, or that nobody could tell apart in the output.
    """
    lines: dict[str, Line] = {}
    wrong = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        found = _object_of(line)
        name = found.get("custom_id") if found else None
        if found is None:
            wrong.append(f"line {number} is no JSON object")
        elif not isinstance(name, str) or not name:
            wrong.append(f"line {number} has no custom_id")
        elif name in lines:
            wrong.append(f"line {number} repeats the custom_id {name!r:.60}")
        else:
            url, body = found.get("url"), found.get("body")
            lines[name] = Line(name, found.get("method", "POST"), url, body)
    if wrong:
        more = len(wrong) - _MOST_SHOWN
        shown = [*wrong[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise ConfigError(f"{path}: {'; '.join(shown)}")
    return list(lines.values())


class Output:
    """The file of answers, added to line by line; a line that was cut off by a crash is dropped.

    Raises:
        ConfigError: it cannot be written, or holds something else than answers.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file: BinaryIO = open(path, "r+b" if os.path.exists(path) else "w+b")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            data = self._file.read()
            whole = data.rfind(b"\n") + 1
            self.done = set(_ids_of(data[:whole], path))
            if not _may_begin_a_row(data[whole:]):
                raise ConfigError(f"{path}: its end is no answer of a batch; give another file")
            self._file.truncate(whole)
            self._file.seek(whole)
        except BaseException:
            self._file.close()
            raise

    def write(self, row: dict[str, Any]) -> None:
        """Add one answer; it is in the system's hands when this returns."""
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _may_begin_a_row(tail: bytes) -> bool:
    return tail.startswith(_ROW_BEGINS) or _ROW_BEGINS.startswith(tail)


def _ids_of(data: bytes, path: str) -> Iterator[str]:
    for number, line in enumerate(data.splitlines(), start=1):
        found = _object_of(line)
        if found is None or not isinstance(found.get("custom_id"), str):
            raise ConfigError(f"{path}: line {number} is no answer of a batch; give another file")
        yield found["custom_id"]


def _object_of(line: str | bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
