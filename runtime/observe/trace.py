"""TraceWriter: an observer that writes every step to a JSONL file."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec
import xxhash

from runtime.errors import ConfigError
from runtime.observe.steps import StepObserver, StepRecord
from runtime.observe.trace_lines import FORMAT, VERSION, End, Header, Line, line_of

log = logging.getLogger(__name__)

_FLUSH_EVERY_S = 1.0
_BUFFER_BYTES = 1 << 18
KEY = "observe.trace"


def check_trace_path(path: str) -> None:
    """Look at the place of a trace and write nothing.

    Raises:
        ConfigError: it cannot be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        reason = "is a folder"
    elif not os.path.isdir(folder):
        reason = f"there is no folder {folder}"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise ConfigError(f"{KEY}: {path}: cannot be written: {reason}")


class TraceWriter:
    """Writes a trace; see trace_lines.

    A trace that cannot be written any more (a full disk) ends with a warning; the engine goes on.
    Not thread-safe.

    Args:
        path: of the newest file; it is replaced. Older parts are `path.1`, `path.2`, ...
        about: what ran; for the header.
        max_bytes: of a file, whose last line may go beyond it.
        num_files: kept at most; the oldest is dropped.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(
        self, path: str, about: Mapping[str, Any], *, max_bytes: int, num_files: int
    ) -> None:
        self._path, self._max_bytes, self._num_files = path, max_bytes, num_files
        self._encoder = msgspec.json.Encoder()
        self._digest = xxhash.xxh3_64()
        self._num_steps = 0
        self._num_bytes = 0
        self._flushed_s = 0.0
        self._header = Header(
            format=FORMAT,
            version=VERSION,
            trace_id=uuid.uuid4().hex,
            part=0,
            clock_s=time.perf_counter(),
            date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            about=dict(about),
        )
        self._file: BinaryIO | None = None
        try:
            self._begin()
        except OSError as error:
            raise ConfigError(f"{KEY}: {path}: cannot be written: {error.strerror}") from None

    def on_step(self, record: StepRecord) -> None:
        """See StepObserver."""
        if self._file is None:
            return
        if record.ro is not None:
            self._digest.update(record.ro.token_ids.tobytes())
        line = line_of(record, self._header.clock_s, self._digest.hexdigest())
        try:
            self._num_steps += 1
            self._write(line)
            if self._num_bytes >= self._max_bytes:
                self._rotate()
            elif record.started_s - self._flushed_s > _FLUSH_EVERY_S:
                self._file.flush()
                self._flushed_s = record.started_s
        except (OSError, ValueError, TypeError) as error:  # a full disk; what JSON has no form for
            self._give_up(error)

    def close(self) -> None:
        """See StepObserver."""
        try:
            self._end(goes_on=False)
        except OSError as error:
            self._give_up(error)

    def _begin(self) -> None:
        self._file = open(self._path, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115  # until close
        self._num_bytes = 0
        self._write(self._header)
        self._file.flush()

    def _write(self, line: Line) -> None:
        assert self._file is not None
        data = self._encoder.encode(line) + b"\n"
        self._file.write(data)
        self._num_bytes += len(data)

    def _end(self, goes_on: bool) -> None:
        if self._file is None:
            return
        self._write(End(num_steps=self._num_steps, goes_on=goes_on))
        file, self._file = self._file, None
        file.close()

    def _rotate(self) -> None:
        self._end(goes_on=True)
        for age in range(self._num_files - 1, 0, -1):
            newer = self._path if age == 1 else f"{self._path}.{age - 1}"
            if os.path.exists(newer):
                os.replace(newer, f"{self._path}.{age}")
        self._header = msgspec.structs.replace(self._header, part=self._header.part + 1)
        self._begin()

    def _give_up(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        log.warning(
            "%s: %s: %s; the trace ends at step %d of its own, the engine goes on",
            *(KEY, self._path, reason, self._num_steps),
        )
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


class Observers:
    """Several observers as one, told in their order."""

    def __init__(self, *observers: StepObserver) -> None:
        self._observers = observers

    def on_step(self, record: StepRecord) -> None:
        """See StepObserver."""
        for observer in self._observers:
            observer.on_step(record)

    def close(self) -> None:
        """See StepObserver."""
        for observer in self._observers:
            observer.close()
