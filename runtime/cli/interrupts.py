"""What SIGINT (Ctrl-C) and SIGTERM do to a command; light to import."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@contextmanager
def held() -> Iterator[None]:
    """An interrupt waits until the block is done; a second one breaks it off. For imports.

    What an import calls back into may drop any exception: torch imports numpy while it loads, and
    would go on with half of it.
    """
    count = 0

    def note(_: int, __: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt

    with _on_interrupt(note):
        yield
    if count:
        raise KeyboardInterrupt


@contextmanager
def never_swallowed() -> Iterator[None]:
    """An interrupt breaks off the block as ever; where something in it swallows the
    KeyboardInterrupt, or fails otherwise because of it, it is raised after the block."""
    is_noted = False
    show = sys.unraisablehook

    def note(_: int, __: FrameType | None) -> None:
        nonlocal is_noted
        is_noted = True
        raise KeyboardInterrupt

    def show_others(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            show(lost)

    with _on_interrupt(note):
        sys.unraisablehook = show_others
        try:
            yield
        except Exception:
            if not is_noted:
                raise
        finally:
            sys.unraisablehook = show
    if is_noted:
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt breaks off the block with a KeyboardInterrupt that may be caught: it is not
    raised again, as `never_swallowed` would."""

    def break_off(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _on_interrupt(break_off):
        yield


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT so; where it is ignored, as by a shell's background jobs, it stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(slots=True)
class Interrupt:
    """The signal that asked for an end, as soon as one came."""

    signum: int = 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signum


@contextmanager
def catch_interrupts() -> Iterator[Interrupt]:
    """Note SIGINT and SIGTERM instead of breaking off inside a step; a second one breaks off."""
    interrupt = Interrupt()

    def note(signum: int, _: FrameType | None) -> None:
        if interrupt.signum:
            raise KeyboardInterrupt
        interrupt.signum = signum

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
