"""`stepgraph run-batch`: a file of requests in OpenAI's batch format, to a file of answers."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import TYPE_CHECKING

from runtime.cli.exit_codes import OK, SOME_FAILED
from runtime.cli.interrupts import held
from runtime.cli.options import add_config_arguments, load_config, log_to_stderr

if TYPE_CHECKING:
    from runtime.config import RunConfig
    from runtime.server.batch_files import Line, Output

SUMMARY = "run a file of requests in OpenAI's batch format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument(
        "input",
        metavar="IN.jsonl",
        help='a JSON object per line, with "custom_id", "url" (/v1/chat/completions or '
        '/v1/completions) and "body"',
    )
    parser.add_argument(
        "output",
        metavar="OUT.jsonl",
        help="an answer per line, added as it ends; where the file exists, the requests that it "
        "answers are not run again",
    )


def run(args: argparse.Namespace) -> int:
    """Reads both files before the model is loaded."""
    config, _ = load_config(args)
    log_to_stderr(logging.INFO)
    with held():
        import os

        from runtime.errors import ConfigError
        from runtime.server import batch_files

    if os.path.exists(args.output) and os.path.samefile(args.input, args.output):
        raise ConfigError(f"{args.output}: is the input file")
    lines = batch_files.read_input(batch_files.read_text(args.input), args.input)
    output = batch_files.Output(args.output)
    try:
        left = [line for line in lines if line.custom_id not in output.done]
        if len(left) < len(lines):
            _say(f"{len(lines) - len(left)} of {len(lines)} requests were answered before")
        return _run(config, left, output) if left else OK
    finally:
        output.close()


def _run(config: RunConfig, lines: list[Line], output: Output) -> int:
    with held():
        import asyncio

        from runtime.errors import ConfigError

        try:
            import numpy  # noqa: F401  # before torch, which imports it while it loads itself

            from runtime.server.batch import run_batch
            from runtime.server.process import name_of
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"run-batch needs the package {error.name}: pip install 'stepgraph[server]'"
            ) from None

    signums: list[int] = []

    async def main() -> int:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def stop(signum: int) -> None:
            signums.append(signum)
            stopped.set()

        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, stop, int(signum))
        return await run_batch(config, lines, output.write, stopped, name_of(config))

    num_failed = asyncio.run(main())
    if signums:
        _say("interrupted; the same command goes on from here")
        return 128 + signums[0]
    _say(f"{len(lines)} requests, {num_failed} with an error")
    return SOME_FAILED if num_failed else OK


def _say(text: str) -> None:
    print(f"stepgraph: {text}", file=sys.stderr)
