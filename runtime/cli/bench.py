"""`stepgraph bench`: throughput, latency and serving benchmarks in this process, without HTTP."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from runtime.cli import bench_flags
from runtime.cli.exit_codes import HELP, OK, SOME_FAILED
from runtime.cli.generate import open_runtime
from runtime.cli.interrupts import catch_interrupts, held, never_swallowed
from runtime.cli.options import load_config, log_to_stderr

if TYPE_CHECKING:
    from runtime.cli.bench_plan import Outputs
    from runtime.config import RunConfig
    from runtime.front.api import Runtime
    from runtime.workbench.records import LoadRun
    from runtime.workbench.tasks import Task

SUMMARY = "measure throughput, latency, or serving under load"
_KINDS = {
    "throughput": ("many requests at once: tokens/s", bench_flags.add_throughput),
    "latency": ("one batch after another: how long each takes", bench_flags.add_latency),
    "serve": ("requests that arrive over time: TTFT, TPOT, ITL, goodput", bench_flags.add_serve),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, (summary, add) in _KINDS.items():
        add(
            kinds.add_parser(
                name,
                help=summary,
                description=f"{summary[0].upper()}{summary[1:]}.",
                epilog=HELP,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; files are written when it is done, whole or not at all."""
    with held():
        from rich.console import Console

        from runtime.cli.bench_plan import outputs_of, task_of

    config, _ = load_config(args)
    task, outputs = task_of(args, config), outputs_of(args, config)
    log_to_stderr(logging.WARNING)
    say = partial(print, "stepgraph:", file=sys.stderr)
    console = Console(stderr=True)
    with held():
        from runtime.cli.bench_screen import watcher_on
        from runtime.cli.screen import spinner
        from runtime.workbench.session import Bench

    with spinner(console, args.no_progress), never_swallowed(), ExitStack() as opened:
        runtime = opened.enter_context(open_runtime(config))
        closing = opened.pop_all()
    with closing, catch_interrupts() as interrupt:
        with ExitStack() as stack:
            watcher = None
            if not args.no_progress:
                watcher = stack.enter_context(watcher_on(console, task.num_requests))
            bench = Bench(runtime, watcher=watcher, is_stopped=lambda: bool(interrupt.signum))
            found = task.run(bench, _vocabulary(runtime))
        if interrupt.signum:
            say("interrupted: there are no figures, and nothing was written")
            return interrupt.exit_code
        return _report(args, config, task, outputs, found, bench.engine_counts())


def _vocabulary(runtime: Runtime) -> list[int]:
    from runtime.workbench.datasets import vocabulary_of

    return vocabulary_of(runtime.spec.vocab_size, runtime.spec.eos_token_ids)


def _report(
    args: argparse.Namespace,
    config: RunConfig,
    task: Task,
    outputs: Outputs,
    found: LoadRun,
    counts: dict[str, Any],
) -> int:
    """Print the table and write the files."""
    with held():
        from rich.console import Console

        from runtime.cli.bench_report import failures, heading, tables
        from runtime.workbench.metrics import details

    failed = failures(found)
    if failed:
        print(f"stepgraph: error: {failed}", file=sys.stderr)
    if not found.completed:
        return SOME_FAILED
    figures = task.figures(found, args.metric_percentiles)
    console = Console(stderr=outputs.is_json_stdout)
    for table in tables(f"bench {args.kind}", figures, args.metric_percentiles):
        console.print(table)
    fields = heading(args.kind, args.label, config, task.settings())
    result = {**fields, **outputs.metadata, **figures, "engine": counts}
    if getattr(args, "save_detailed", False):
        result |= details(found)
    _write(outputs, result, found, f"bench {args.kind}: {args.label}")
    return SOME_FAILED if failed else OK


def _write(outputs: Outputs, result: dict[str, Any], found: LoadRun, title: str) -> None:
    from runtime.workbench.output_file import as_json

    if outputs.is_json_stdout:
        print(as_json(result))
    if outputs.json is not None:
        outputs.json.write_text(as_json(result) + "\n")
    if outputs.chart is not None:
        from runtime.workbench.charts import draw

        draw(outputs.chart, {"requests": found}, title)
