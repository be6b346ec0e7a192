"""`stepgraph serve`: answer over HTTP until it is told to end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from runtime.cli.exit_codes import OK, SOME_FAILED
from runtime.cli.interrupts import held
from runtime.cli.options import add_config_arguments, load_config, log_to_stderr

if TYPE_CHECKING:
    from runtime.server.process import Ending

log = logging.getLogger(__name__)
SUMMARY = "serve the model over HTTP, by OpenAI's API"
_SWITCH_S = 0.0005
"""Seconds for which a thread may keep the interpreter while another one waits: a step waits no
longer for the event loop."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    server = parser.add_argument_group("server")
    server.add_argument("--host", metavar="ADDRESS", help="the same as --set server.host=ADDRESS")
    server.add_argument(
        "--port", metavar="N", type=int, help="the same as --set server.port=N; 0: any free one"
    )
    server.add_argument(
        "-v", "--verbose", action="store_true", help="say more of what was chosen at the start"
    )


def run(args: argparse.Namespace) -> int:
    """Listens first, so that a port in use is told before the model is loaded."""
    config, _ = load_config(args, {"server.host": args.host, "server.port": args.port})
    log_to_stderr(logging.DEBUG if args.verbose else logging.INFO)
    with held():
        import asyncio

        from runtime.errors import ConfigError
        from runtime.server.keys import ApiKeys
        from runtime.server.listen import is_loopback, open_socket

    keys = ApiKeys.from_file(config.server.api_key_file)
    with open_socket(config.server) as listener:
        if not is_loopback(listener) and not keys.are_needed:
            log.warning("server.host: others can reach this, and no key is asked of them")
        with held():
            try:
                import numpy  # noqa: F401  # before torch, which imports it while it loads itself

                from runtime.server import process
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"serve needs the package {error.name}: pip install 'stepgraph[server]'"
                ) from None
        sys.setswitchinterval(_SWITCH_S)
        return _end(asyncio.run(process.serve(config, listener, keys)))


def _end(ending: Ending) -> int:
    """The exit status; where the model is still being loaded, the process ends here."""
    if ending.was_loading:
        print("stepgraph: interrupted while the model was loaded", file=sys.stderr, flush=True)
        os._exit(128 + ending.signum)  # nothing is to be saved, and a loading thread never stops
    if ending.num_cut_off:
        log.warning("%d requests were cut off", ending.num_cut_off)
    if ending.signum == signal.SIGINT:
        return 128 + ending.signum
    return SOME_FAILED if ending.num_cut_off else OK
