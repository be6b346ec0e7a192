#!/usr/bin/env python3
"""Runs the exact schedule of a trace again, with other settings, and says where tokens differ.

usage:
  1. replay.py TRACE                                       the same settings: is it repeatable?
  2. replay.py TRACE --set attention.backend=torch_paged   another attention backend
  3. replay.py TRACE --set graphs.decode=eager             another graph mode
  4. replay.py TRACE --set model.dtype=float32             another type
  5. replay.py TRACE --set engine.threads=1 --steps 100 --json F --assert-equal

A trace is what `observe.trace: FILE` writes. Every step runs the traced rows, blocks and tokens;
where a token differs, its margin says how much more the replay wanted its own: next to nothing
where two tokens were all but equal. Blocks, their size and the lengths are the trace's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime import Runtime
from runtime.cli.bench_flags import count
from runtime.errors import ConfigError
from runtime.observe.trace_reader import read_trace
from runtime.workbench.output_file import OutputFile, as_json
from runtime.workbench.replay import (
    Difference,
    Replayed,
    check_model,
    check_replayable,
    replay,
    replay_config,
)
from tools._common import run_tool

SHOWN = 10


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", metavar="TRACE", help="the newest file of a schedule trace")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="sets", help="repeatable"
    )
    parser.add_argument("--model", metavar="PATH", help="where the model lies here")
    parser.add_argument("--steps", metavar="N", type=count, help="the first N steps alone")
    parser.add_argument("--json", metavar="F", help="write what was found there too")
    parser.add_argument(
        "--assert-equal", action="store_true", help="exit with 1 where a token differs"
    )
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    output = None if args.json is None else OutputFile(args.json, "--json")
    trace = read_trace(args.trace)
    check_replayable(trace)
    steps = trace.steps[: args.steps]
    if not steps:
        raise ConfigError(f"{args.trace}: has no step")
    overrides = {} if args.model is None else {"model.path": args.model}
    config = replay_config(trace, args.sets, overrides)
    with Runtime(config) as runtime, Progress(console=Console(stderr=True)) as progress:
        check_model(trace, runtime)
        task = progress.add_task("steps", total=len(steps))
        found = replay(runtime, steps, lambda number: progress.update(task, completed=number))
    for line in words(found):
        print(line)
    if output is not None:
        summary = {key: value for key, value in asdict(found).items() if key != "differences"}
        rows = [asdict(difference) for difference in found.differences]
        changes = {"trace": args.trace, "sets": args.sets, **overrides}
        output.write_text(as_json({**changes, **summary, "differences": rows}) + "\n")
    return 1 if found.differences and args.assert_equal else 0


def words(found: Replayed) -> list[str]:
    """What to print, a line each."""
    count = len(found.differences)
    lines = [
        f"{found.num_steps:,} steps, {found.num_tokens:,} tokens compared: "
        + (f"{count:,} differ" if count else "all equal"),
        f"launch and collect: {found.traced_s:.3f} s in the trace, {found.replayed_s:.3f} s here",
    ]
    if found.differences:
        first, *others = found.differences[:SHOWN]
        lines.append(f"the first: {_in_words(first)}")
        lines += [f"  then {_in_words(difference)}" for difference in others]
        if count > SHOWN:
            lines.append(f"  and {count - SHOWN:,} more")
        largest = max(abs(difference.margin or 0.0) for difference in found.differences)
        lines.append(f"largest margin: {largest:.3g}")
    if found.stopped:
        lines.append(f"ended early: {found.stopped}")
    return lines


def _in_words(difference: Difference) -> str:
    margin = "unknown" if difference.margin is None else f"{difference.margin:.3g}"
    return (
        f"step {difference.step} ({difference.kind} here), {difference.request_id}, output token "
        f"{difference.output_index}: {difference.traced} in the trace, {difference.replayed} here, "
        f"margin {margin}"
    )


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    return run_tool("replay", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
