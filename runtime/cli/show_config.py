"""`stepgraph show-config`: the settled configuration, and where each value came from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runtime.cli.exit_codes import OK
from runtime.cli.options import add_config_arguments, load_config

if TYPE_CHECKING:
    from runtime.config import Origin, Provenance, RunConfig

SUMMARY = "print the settled configuration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="a line per value: default, YAML file and line, environment variable, or flag",
    )


def run(args: argparse.Namespace) -> int:
    """Print YAML that is a whole run file again, or with --explain a table."""
    config, provenance = load_config(args)
    if args.explain:
        _print_table(config, provenance)
    else:
        from ruamel.yaml import YAML

        requests = [request.model_dump(exclude_defaults=True) for request in config.requests]
        yaml = YAML(typ="rt", pure=True)
        yaml.width = sys.maxsize  # a line per value
        encoding = str(getattr(sys.stdout, "encoding", None) or "utf-8")
        # where it is not UTF-8, as a run file must be, \xe9 and the like stand for other letters
        yaml.allow_unicode = encoding.lower().replace("-", "") == "utf8"
        yaml.dump({**config.model_dump(), "requests": requests}, sys.stdout)
    sys.stdout.flush()
    print(
        "stepgraph: these values agree with each other; whether they suit this machine, "
        "stepgraph check says",
        file=sys.stderr,
    )
    return OK


def explain(config: RunConfig, provenance: Provenance) -> Iterator[tuple[str, Any, Origin]]:
    """(key, value, origin) of every value, in the schema's order."""
    from runtime.config import Section

    def walk(value: Any, key: tuple[str | int, ...]) -> Iterator[tuple[str, Any, Origin]]:
        if isinstance(value, Section):
            for name in type(value).model_fields:
                yield from walk(getattr(value, name), (*key, name))
        elif isinstance(value, dict) and value:
            for name, inside in value.items():
                yield from walk(inside, (*key, name))
        else:
            yield ".".join(str(part) for part in key), value, provenance.of(key)

    yield from walk(config, ())


def _print_table(config: RunConfig, provenance: Provenance) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("key", "value", "from", "where"):
        table.add_column(heading, overflow="fold", no_wrap=not sys.stdout.isatty())
    for key, value, origin in explain(config, provenance):
        table.add_row(*(Text(cell) for cell in (key, _text(value), origin.kind, origin.where)))
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)  # a line per value, for grep
    console.print(table)


def _text(value: Any) -> str:
    from runtime.config import RequestConfig

    if isinstance(value, list) and value and isinstance(value[0], RequestConfig):
        return f"({len(value)} requests)"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
