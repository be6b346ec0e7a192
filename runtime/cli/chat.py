"""`stepgraph chat`: talk with the model in a terminal."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from runtime.cli.exit_codes import OK
from runtime.cli.interrupts import held, interruptible, never_swallowed
from runtime.cli.options import add_config_arguments, load_config, log_to_stderr

if TYPE_CHECKING:
    from runtime.cli.conversation import Conversation

SUMMARY = "talk with the model in this terminal"
KEYS = (
    "a \\ at the end of a line goes on in the next; Ctrl-C stops an answer; /reset forgets; "
    "Ctrl-D ends"
)
_PROMPT, _MORE = "> ", ". "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    talk = parser.add_argument_group("conversation", KEYS)
    talk.add_argument("--system", metavar="TEXT", help="what the model is told before all else")
    talk.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        help="most tokens of an answer; else sampling.max_tokens, else what the model's length "
        "leaves",
    )


def run(args: argparse.Namespace) -> int:
    """Answers line by line until the input ends."""
    with held():
        from rich.console import Console

        from runtime.cli.conversation import Conversation
        from runtime.cli.generate import open_runtime
        from runtime.cli.screen import spinner
        from runtime.errors import ConfigError

    config, _ = load_config(args)
    if args.max_tokens is not None and args.max_tokens < 1:
        raise ConfigError(f"--max-tokens: must be an integer >= 1, got {args.max_tokens}")
    log_to_stderr(logging.WARNING)
    with spinner(Console(stderr=True), quiet=False), never_swallowed():
        runtime = open_runtime(config)
    with runtime:
        if runtime.tokenizer is None or not runtime.tokenizer.has_chat_template:
            raise ConfigError(
                "this model has no chat template; stepgraph generate --prompt continues texts"
            )
        max_tokens = args.max_tokens or config.sampling.get("max_tokens")
        return _talk(Conversation(runtime, args.system, max_tokens))


def _talk(conversation: Conversation) -> int:
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401  # `input` then edits lines and remembers them

        print(f"stepgraph: {KEYS}", file=sys.stderr)
    with interruptible():
        while True:
            try:
                status = _turn(conversation, is_terminal)
            except KeyboardInterrupt:  # at the prompt, or a second one in an answer
                print("\nstepgraph: Ctrl-D ends", file=sys.stderr)
            except EOFError:
                return OK
            else:
                if status:
                    return status


def _turn(conversation: Conversation, is_terminal: bool) -> int:
    """One message and its answer; the exit status where the program is to end."""
    from runtime.errors import RequestError

    text = _read(is_terminal)
    if text.strip() == "/reset":
        conversation.reset()
    elif text.strip():
        try:
            return _answer(conversation, text)
        except RequestError as error:
            print(f"stepgraph: {error}; /reset forgets what was said", file=sys.stderr)
    return 0


def _read(is_terminal: bool) -> str:
    """A message: a line, and those that it goes on in."""
    lines: list[str] = []
    while True:
        line = input((_MORE if lines else _PROMPT) if is_terminal else "")
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)


def _answer(conversation: Conversation, text: str) -> int:
    """Print an answer; SIGINT stops it alone, SIGTERM the program too (then the exit status)."""
    import signal

    from runtime.cli.interrupts import catch_interrupts

    with catch_interrupts() as interrupt:
        for part in conversation.answer(text, lambda: bool(interrupt.signum)):
            print(part, end="", flush=True)
        print(flush=True)
    if interrupt.signum == signal.SIGINT:
        print("stepgraph: stopped", file=sys.stderr)
    return interrupt.exit_code if interrupt.signum == signal.SIGTERM else 0
