"""Flags that several commands share, and what they settle to."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from runtime.cli.interrupts import held

if TYPE_CHECKING:
    from runtime.config import Provenance, RunConfig

LOGGERS = ("runtime", "attention_backends", "graphs")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "configuration", "flags win over STEPGRAPH_* variables, these over the YAML file"
    )
    group.add_argument("--config", metavar="F.yaml", help="the run file, such as one of configs/")
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="sets",
        help="set one key, such as scheduler.max_num_seqs=8; VALUE is read as YAML; repeatable",
    )
    group.add_argument("--model", metavar="PATH", help="the same as --set model.path=PATH")


def load_config(args: argparse.Namespace) -> tuple[RunConfig, Provenance]:
    """The settled run of the shared flags.

    Raises:
        ConfigError: with every problem found.
    """
    with held():
        from runtime.config import load_run_config

    overrides = {} if args.model is None else {"model.path": args.model}
    return load_run_config(
        args.config, args.sets, overrides=overrides, flags={"model.path": "--model"}
    )


def log_to_stderr(level: int = logging.INFO) -> None:
    """Show what the runtime logs, one line each, such as a limit that it lowered."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("stepgraph: %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
