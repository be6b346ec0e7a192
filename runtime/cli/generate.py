"""`stepgraph generate`: run requests, print the answers, report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runtime.cli.exit_codes import OK, SOME_FAILED
from runtime.cli.options import add_config_arguments, load_config, log_to_stderr

if TYPE_CHECKING:
    from rich.console import Console

    from runtime.api import Runtime
    from runtime.cli.answers import Bar
    from runtime.cli.drive import Listener
    from runtime.cli.work import Job
    from runtime.config import RunConfig, RuntimeConfig

SUMMARY = "run requests and print the answers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    work = parser.add_argument_group(
        "requests", "--prompt and --input replace the requests of the run file"
    )
    work.add_argument(
        "--prompt", metavar="TEXT", action="append", default=[], dest="prompts", help="repeatable"
    )
    work.add_argument(
        "--input",
        metavar="F.jsonl",
        help='a JSON object per line: "prompt", "chat" or "token_ids", and sampling fields '
        "such as max_tokens; - is standard input",
    )
    work.add_argument(
        "--max-tokens", metavar="N", type=int, help="most output tokens, for every request"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        metavar="F.jsonl",
        help="a JSON object per request, written as it ends; replaces the file",
    )
    output.add_argument(
        "--stream", action="store_true", help="print answers as they are generated, in order"
    )
    output.add_argument("--no-progress", action="store_true", help="no progress bar")
    output.add_argument(
        "--quiet", action="store_true", help="no answers, no progress bar, no table"
    )


def run(args: argparse.Namespace) -> int:
    """Run every request; a request that fails harms no other."""
    from rich.console import Console

    from runtime.cli.work import collect_jobs
    from runtime.errors import ConfigError

    config, _ = load_config(args)
    if args.max_tokens is not None and args.max_tokens < 1:
        raise ConfigError(f"--max-tokens: must be an integer >= 1, got {args.max_tokens}")
    jobs = collect_jobs(config, args.prompts, args.input, args.max_tokens)
    console = Console(stderr=True)
    with ExitStack() as stack:
        listeners: list[Listener] = []
        if args.output is not None:
            listeners.append(_open_output(args, stack))
        log_to_stderr()
        return _generate(args, config, jobs, listeners, console)


def open_runtime(config: RuntimeConfig) -> Runtime:
    """Load the model; the heavy imports happen here."""
    from runtime.api import Runtime

    return Runtime(config)


def _open_output(args: argparse.Namespace, stack: ExitStack) -> Listener:
    from runtime.cli.jsonl import JsonlWriter
    from runtime.errors import ConfigError

    paths = [path for path in (args.input, args.output) if path and os.path.exists(path)]
    if len(paths) == 2 and os.path.samefile(*paths):
        raise ConfigError(f"--output {args.output}: is the input file")
    writer = JsonlWriter(args.output)
    stack.callback(writer.close)
    return writer


def _generate(
    args: argparse.Namespace,
    config: RunConfig,
    jobs: list[Job],
    listeners: list[Listener],
    console: Console,
) -> int:
    from runtime.cli.drive import catch_interrupts, drive
    from runtime.cli.report import Tally, report

    tally = Tally()
    with _loading(console, args.quiet), ExitStack() as opened:
        runtime = opened.enter_context(open_runtime(config))
        closing = opened.pop_all()
    with closing, catch_interrupts() as interrupt, ExitStack() as stack:
        bar = _bar(args, jobs, console, stack)
        listeners = [*listeners, tally, *([bar] if bar else []), *_answers(args, bar)]
        look_ahead = 2 * config.scheduler.max_num_seqs
        started_s = time.perf_counter()
        drive(
            runtime,
            jobs,
            listeners,
            interrupt,
            look_ahead=None if config.scheduler.order == "priority" else look_ahead,
        )
        seconds = time.perf_counter() - started_s
        stack.close()
        if not args.quiet:
            sys.stdout.flush()
            console.print(report(runtime.stats(), tally, seconds))
        if interrupt.signum:
            console.print("stepgraph: interrupted; what was begun is in the output")
            return interrupt.exit_code
    return SOME_FAILED if tally.has_errors else OK


def _loading(console: Console, quiet: bool) -> ExitStack:
    """A spinner while the model loads, on a terminal."""
    stack = ExitStack()
    if console.is_terminal and not quiet:
        stack.enter_context(console.status("loading the model"))
    return stack


def _bar(
    args: argparse.Namespace, jobs: list[Job], console: Console, stack: ExitStack
) -> Bar | None:
    """The progress bar; none where the answers themselves run over the terminal."""
    from runtime.cli.answers import Bar

    if args.quiet or args.no_progress or (args.stream and sys.stdout.isatty()):
        return None
    return stack.enter_context(Bar(console, len(jobs)))


def _answers(args: argparse.Namespace, bar: Bar | None) -> list[Listener]:
    from runtime.cli.answers import Answers

    if args.quiet:
        return []
    return [Answers(_writer(bar), live=args.stream)]


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
