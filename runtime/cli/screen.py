"""What `generate` shows while it works, by its flags and by what is a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Console

from runtime.cli.answers import Answers, Bar

if TYPE_CHECKING:
    from runtime.front.api import Runtime


def spinner(console: Console, quiet: bool) -> ExitStack:
    """A spinner while the model loads, on a terminal."""
    stack = ExitStack()
    if console.is_terminal and not quiet:
        stack.enter_context(console.status("loading the model"))
    return stack


def progress_bar(
    args: argparse.Namespace, num_jobs: int, console: Console, stack: ExitStack
) -> Bar | None:
    """The progress bar; none where the answers themselves run over the terminal."""
    if args.quiet or args.no_progress or (args.stream and sys.stdout.isatty()):
        return None
    return stack.enter_context(Bar(console, num_jobs))


def prints_answers(args: argparse.Namespace) -> bool:
    """Whether standard output is for answers."""
    return not args.quiet and args.output != "-"


def answers(args: argparse.Namespace, runtime: Runtime, bar: Bar | None) -> list[Answers]:
    """The listener that prints them; none where they are not wanted."""
    if not prints_answers(args):
        return []
    return [Answers(_writer(bar), live=args.stream, as_ids=runtime.tokenizer is None)]


def _writer(bar: Bar | None) -> Callable[[str], None]:
    """Writes answers to standard output; through the bar where both share a terminal."""
    if bar is not None and sys.stdout.isatty() and bar.progress.console.is_terminal:
        console = bar.progress.console

        def above_bar(text: str) -> None:
            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

        return above_bar
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"

    def to_stdout(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return to_stdout
