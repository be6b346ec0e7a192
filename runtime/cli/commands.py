"""Parses the command line and turns errors into one message and an exit status.

Nothing heavy is imported before a command runs, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime import __version__
from runtime.cli import bench, chat, check, generate, run_batch, serve, show_config
from runtime.cli.exit_codes import BAD_USAGE, BROKEN, HELP, exit_code_of
from runtime.errors import StepgraphError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = {
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "run-batch": run_batch,
    "check": check,
    "show-config": show_config,
    "bench": bench,
}
_SIGPIPE = 141
_NO_THREAD = "can't start new thread"
"""What Python says; it has no class of its own."""


def run_command(argv: Sequence[str]) -> int:
    """Run a command; returns the exit status (see exit_codes).

    Raises:
        KeyboardInterrupt: the command was interrupted before it had begun its work.
    """
    try:
        parser, commands = make_parsers()
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            commands.get(args.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
        if args.command is None:
            parser.print_help(sys.stderr)
            return BAD_USAGE
        status: int = COMMANDS[args.command].run(args)
        sys.stdout.flush()
    except StepgraphError as error:
        print(f"stepgraph: error: {error}", file=sys.stderr)
        return exit_code_of(error)
    except BrokenPipeError:
        _drop_output()
        return _SIGPIPE
    except OSError as error:
        name = f" {error.filename}:" if error.filename else ""
        print(f"stepgraph: error:{name} {error.strerror or error}", file=sys.stderr)
        _drop_output()
        return BROKEN
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        print(
            "stepgraph: error: the system starts no more threads for this user; see ulimit -u, or "
            "the limit on processes of the container",
            file=sys.stderr,
        )
        return BROKEN
    return status


class _Parser(argparse.ArgumentParser):
    """One that does not hide that its help could not be written."""

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if message:
            (file or sys.stderr).write(message)
            sys.stdout.flush()


def make_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command line, and that of each command."""
    parser = _Parser(
        prog="stepgraph",
        description="An LLM inference runtime that mixes prefill and decode in every step.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"stepgraph {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    made: dict[str, argparse.ArgumentParser] = {}
    for name, module in COMMANDS.items():
        made[name] = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.",
            epilog=HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(made[name])
    return parser, made


def _drop_output() -> None:
    """Where standard output takes no more, the flush at exit must not complain again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
