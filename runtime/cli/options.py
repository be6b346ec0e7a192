"""Flags that several commands share, and what they settle to."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


def load_config(
    args: argparse.Namespace, more: Mapping[str, Any] | None = None
) -> tuple[RunConfig, Provenance]:
    """The settled run of the shared flags.

    Args:
        more: dotted keys that flags of this command give; the last part of a key is the flag's
            name, and None says nothing.

    Raises:
        ConfigError: with every problem found.
    """
    with held():
        from runtime.config import load_run_config

    flags = {"model.path": "--model", **{key: f"--{key.rpartition('.')[2]}" for key in more or {}}}
    given = {"model.path": args.model, **(more or {})}
    overrides = {key: value for key, value in given.items() if value is not None}
    return load_run_config(args.config, args.sets, overrides=overrides, flags=flags)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Show what the runtime logs, one line each, such as a limit that it lowered."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("stepgraph: %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
