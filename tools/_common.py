"""What the scripts that compare share: their output files, and errors as one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.exit_codes import exit_code_of
from runtime.errors import ConfigError, StepgraphError
from runtime.workbench.charts import check_charts, draw, save
from runtime.workbench.output_file import OutputFile, as_json
from runtime.workbench.records import LoadRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="F", help="write what was found there too")
    parser.add_argument(
        "--charts",
        metavar="FOLDER",
        help="draw there too (SVG); needs matplotlib, the extra charts",
    )


class Outputs:
    """The files of --json and --charts, looked at before the work begins.

    Args:
        charts: names of the charts, without their type.

    Raises:
        ConfigError: one cannot be written.
    """

    def __init__(self, args: argparse.Namespace, charts: tuple[str, ...]) -> None:
        self._json = None if args.json is None else OutputFile(args.json, "--json")
        self._charts: dict[str, OutputFile] = {}
        if args.charts is not None:
            folder = Path(args.charts)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--charts {folder}: cannot be made: {error.strerror}") from None
            for name in charts:
                self._charts[name] = check_charts(str(folder / f"{name}.svg"), "--charts")

    def write(self, found: Mapping[str, Any]) -> None:
        if self._json is not None:
            self._json.write_text(as_json(found) + "\n")

    def draw(self, name: str, runs: Mapping[str, LoadRun], title: str) -> None:
        if name in self._charts:
            draw(self._charts[name], runs, title)

    def draw_figure(self, name: str, make: Callable[[], Figure]) -> None:
        if name in self._charts:
            save(self._charts[name], make(), name)


def run_tool(name: str, work: Callable[[], int]) -> int:
    """The exit status of `work`; an error that a user can mend is one line (see exit_codes)."""
    try:
        return work()
    except (StepgraphError, OSError) as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return exit_code_of(error)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; nothing was written", file=sys.stderr)
        return 130
