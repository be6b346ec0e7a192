"""`stepgraph generate`: run requests, print the answers, report."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from runtime.cli.exit_codes import OK, SOME_FAILED
from runtime.cli.interrupts import catch_interrupts, held, never_swallowed
from runtime.cli.options import add_config_arguments, load_config, log_to_stderr

if TYPE_CHECKING:
    from rich.console import Console

    from runtime.cli.drive import Listener
    from runtime.cli.work import Job
    from runtime.config import RunConfig, RuntimeConfig
    from runtime.front.api import Runtime

SUMMARY = "run requests and print the answers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    work = parser.add_argument_group(
        "requests", "--chat, --prompt and --input replace the requests of the run file"
    )
    work.add_argument(
        "--chat",
        metavar="TEXT",
        action="append",
        type=lambda text: ("chat", text),
        default=[],
        dest="asked",
        help="a user's message, given through the model's chat template; repeatable",
    )
    work.add_argument(
        "--prompt",
        metavar="TEXT",
        action="append",
        type=lambda text: ("prompt", text),
        dest="asked",
        help="text that the model continues as it is; repeatable",
    )
    work.add_argument(
        "--input",
        metavar="F.jsonl",
        help='a JSON object per line: "prompt", "chat" (or "messages") or "token_ids", sampling '
        'fields such as max_tokens, and "id"; - is standard input',
    )
    work.add_argument(
        "--max-tokens", metavar="N", type=int, help="most output tokens, for every request"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        metavar="F.jsonl",
        help="a JSON object per request, written as it ends; replaces the file; - is standard "
        "output, where no answers are printed then",
    )
    output.add_argument(
        "--stream", action="store_true", help="print answers as they are generated, in order"
    )
    output.add_argument("--no-progress", action="store_true", help="no progress bar")
    loud = output.add_mutually_exclusive_group()
    loud.add_argument(
        "--quiet",
        action="store_true",
        help="errors and warnings alone: no answers, no progress bar, no table",
    )
    loud.add_argument(
        "-v", "--verbose", action="store_true", help="say more of what was chosen at the start"
    )


def run(args: argparse.Namespace) -> int:
    """Run every request; a request that fails harms no other."""
    with held():
        from rich.console import Console

        from runtime.cli.work import collect_jobs
        from runtime.errors import ConfigError

    config, _ = load_config(args)
    if args.max_tokens is not None and args.max_tokens < 1:
        raise ConfigError(f"--max-tokens: must be an integer >= 1, got {args.max_tokens}")
    if args.output == "-" and args.stream:
        raise ConfigError("--stream: --output - prints no answers; give one of the two")
    jobs = collect_jobs(config, args.asked, args.input, args.max_tokens)
    console = Console(stderr=True)
    with ExitStack() as stack:
        listeners: list[Listener] = []
        if args.output is not None:
            listeners.append(_open_output(args, stack))
        log_to_stderr(_log_level(args))
        return _generate(args, config, jobs, listeners, console)


def _log_level(args: argparse.Namespace) -> int:
    if args.quiet:
        return logging.WARNING
    return logging.DEBUG if args.verbose else logging.INFO


def open_runtime(config: RuntimeConfig) -> Runtime:
    """Load the model; the heavy imports happen here."""
    with held():
        import numpy  # noqa: F401  # before torch, which imports it while it loads itself

        from runtime.front.api import Runtime

    return Runtime(config)


def _open_output(args: argparse.Namespace, stack: ExitStack) -> Listener:
    with held():
        from runtime.cli.jsonl import JsonlWriter
        from runtime.errors import ConfigError

    paths = [p for p in (args.input, args.output) if p and p != "-" and os.path.exists(p)]
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
    with held():
        from runtime.cli.drive import drive
        from runtime.cli.notes import FailureLines, RawPromptHint, warn_of_equal_samples
        from runtime.cli.report import Tally, report
        from runtime.cli.screen import answers, prints_answers, progress_bar, spinner

    say = partial(print, "stepgraph:", file=sys.stderr)
    tally = Tally()
    with spinner(console, args.quiet), never_swallowed(), ExitStack() as opened:
        runtime = opened.enter_context(open_runtime(config))
        closing = opened.pop_all()
    warn_of_equal_samples(jobs, say)
    with closing, catch_interrupts() as interrupt, ExitStack() as stack:
        notes: list[RawPromptHint | FailureLines] = [RawPromptHint(runtime)]
        if not prints_answers(args):
            notes.append(FailureLines(say, args.output))
        bar = progress_bar(args, len(jobs), console, stack)
        shown: list[Listener] = [*([bar] if bar else []), *answers(args, runtime, bar)]
        listeners = [*listeners, tally, *notes, *shown]
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
        for line in [line for note in notes for line in note.lines()]:
            say(line)
        if interrupt.signum:
            say("interrupted; what was begun is in the output")
            return interrupt.exit_code
    return SOME_FAILED if tally.has_errors else OK
