"""Reads a schedule trace back, from one file or all that are left of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from runtime.errors import ConfigError
from runtime.observe.trace_lines import FORMAT, VERSION, End, Header, StepLine


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in memory."""

    header: Header
    """Of its oldest file."""
    steps: tuple[StepLine, ...]
    is_first: bool
    """Whether it begins where the engine began; else older files were dropped."""
    is_closed: bool
    """Whether it was closed; else the process ended otherwise, or still writes."""


def read_trace(path: str) -> Trace:
    """A trace with the older files beside it, `path.1` and so on, as far as they are its own.

    Raises:
        ConfigError: a file that cannot be read, is no trace, is of another version, or was cut.
    """
    header, steps, end = _read_file(path)
    is_closed = end is not None and not end.goes_on
    age = 1
    while header.part > 0 and os.path.exists(f"{path}.{age}"):
        older, more, _ = _read_file(f"{path}.{age}")
        if older.trace_id != header.trace_id or older.part != header.part - 1:
            break  # of another trace
        header, steps, age = older, more + steps, age + 1
    return Trace(header, tuple(steps), header.part == 0, is_closed)


def _read_file(path: str) -> tuple[Header, list[StepLine], End | None]:
    lines = _lines(path)
    header = _header(path, next(lines, (1, b"")))
    steps: list[StepLine] = []
    end = None
    for number, line in lines:
        if end is not None:
            raise ConfigError(f"{path}:{number}: a line behind the end of the trace")
        try:
            found = _STEP.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}:{number}: no line of a trace: {error}") from None
        if isinstance(found, End):
            end = found
        else:
            steps.append(found)
    return header, steps, end


_STEP: msgspec.json.Decoder[StepLine | End] = msgspec.json.Decoder(StepLine | End)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    raise ConfigError(f"{path}:{number}: the trace was cut inside this line")
                yield number, line
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _header(path: str, first: tuple[int, bytes]) -> Header:
    """The header, whose version is looked at before its fields."""
    try:
        fields = msgspec.json.decode(first[1])
        is_ours = fields["format"] == FORMAT
        version = fields["version"]
    except (msgspec.DecodeError, KeyError, TypeError):
        is_ours, version = False, None
    if not is_ours:
        raise ConfigError(f"{path}: is no schedule trace ({FORMAT})")
    if version != VERSION:
        raise ConfigError(
            f"{path}: is a trace of version {version!r:.20}, and this stepgraph reads {VERSION}"
        )
    try:
        return msgspec.json.decode(first[1], type=Header)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}:1: no header of a trace: {error}") from None
