"""The front of the process, `stepgraph` or `python -m runtime`.

It is small, since Python shows a traceback for an interrupt that comes before `main` runs: all
else, argparse included, is imported inside.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

INTERRUPTED = 130


def main() -> int:
    """The command of sys.argv; returns the exit status (see exit_codes)."""
    try:
        _open_missing_streams()
        sys.stderr = _lossy(sys.stderr)
        _show_any_text(sys.stdout)
        return run(sys.argv[1:])
    except KeyboardInterrupt:  # a second one, while the first was being reported
        return INTERRUPTED
    finally:
        # nothing is left to break off, and the interpreter's own end would show a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(argv: Sequence[str]) -> int:
    """A command inside this process; an interrupt at any moment ends it with one line."""
    try:
        from runtime.cli.interrupts import held, never_swallowed

        with never_swallowed():
            with held():
                from runtime.cli.commands import run_command
            return run_command(argv)
    except KeyboardInterrupt:
        print("stepgraph: interrupted", file=sys.stderr)
        return INTERRUPTED


class _LossyFile(io.RawIOBase):
    """Writes to a file, and goes on where that takes no more: what is said beside an answer must
    not cost the answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream  # which closes its file when it is let go of
        self._file = stream.fileno()

    def write(self, data: Buffer) -> int:
        view = memoryview(data)
        try:
            return os.write(self._file, view)
        except OSError:
            return view.nbytes

    def fileno(self) -> int:
        return self._file

    def isatty(self) -> bool:
        return os.isatty(self._file)

    def writable(self) -> bool:
        return True


def _lossy(stream: TextIO) -> TextIO:
    try:
        file = _LossyFile(stream)
    except (OSError, ValueError):  # a stream in memory
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


def _show_any_text(stream: TextIO) -> None:
    """Let a stream of few characters escape the others instead of failing."""
    if isinstance(stream, io.TextIOWrapper):  # else a stream in memory
        stream.reconfigure(errors="backslashreplace")


def _open_missing_streams() -> None:
    """Give a stream that the shell closed (`>&-`) a place where it is lost; else the next file that
    is opened would take its number, and its output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
