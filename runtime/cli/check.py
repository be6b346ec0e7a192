"""`stepgraph check`: what would run here, and why or why not, without reading a weight."""

from __future__ import annotations

import argparse

from runtime.cli.options import add_config_arguments

SUMMARY = "say what would run on this machine, and why or why not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return 0
