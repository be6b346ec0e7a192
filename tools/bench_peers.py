"""Runs stepgraph and its peers in turn on the same work; see bench_peers.sh."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools._peer_files import FileRates, file_rows, show_files

PEERS = Path(__file__).parent / "peers"
MODELS = {
    "stepgraph": "model-hf",
    "openvino": "model-ov",
    "vllm": "model-hf",
    "llamacpp": "model-f16.gguf",
    "hf": "model-hf",
}
WORKLOADS = ["single", "decode", "prefill", "mixed", "prefix"]
LINE = re.compile(r"^\S+\s+(\w+)\s+[\d.]+ s\s+out\s+([\d.]+) tok/s")

Rates = dict[str, dict[str, list[float]]]
"""workload -> system -> output tokens/s of each round"""


def main() -> int:
    args = parse_args()
    if args.files:
        return compare_files(args)
    systems = [s for s in args.systems if is_there(s, args.dir)]
    rates: Rates = defaultdict(lambda: defaultdict(list))
    for round_number in range(1, args.rounds + 1):
        for system in systems:
            note(f"round {round_number} of {args.rounds}: {system}")
            model = args.dir / MODELS[system]
            for workload, rate in measure(system, args.dir, model, args.workloads).items():
                rates[workload][system].append(rate)
    medians = {w: {s: statistics.median(r) for s, r in of.items()} for w, of in rates.items()}
    show(medians, systems)
    if args.json:
        found = {
            w: {s: {"output_tokens_per_s": round(rate, 2)} for s, rate in of.items()}
            for w, of in medians.items()
        }
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    if args.chart:
        args.chart.write_text(chart(medians, systems))
    return 0 if medians else 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="stepgraph beside its peers, in one run")
    parser.add_argument("dir", type=Path, help="the peers' environments and models")
    parser.add_argument("--json", type=Path, help="write the medians")
    parser.add_argument("--chart", type=Path, help="write a bar chart (SVG)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system (3)")
    parser.add_argument("--systems", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument(
        "--files",
        nargs="+",
        type=Path,
        metavar="F.gguf",
        help="in place of the peers' own forms: each file by stepgraph and by llama.cpp",
    )
    return parser.parse_args()


def compare_files(args: argparse.Namespace) -> int:
    """Each file through both; 1 where nothing could be measured."""
    python = args.dir / "llamacpp" / "bin" / "python"
    missing = [str(path) for path in (python, *args.files) if not path.exists()]
    if missing:
        note(f"there is no {' and no '.join(missing)}")
        return 2
    rates: FileRates = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for round_number in range(1, args.rounds + 1):
        for file in args.files:
            for system in ("stepgraph", "llamacpp"):
                note(f"round {round_number} of {args.rounds}: {file.name}, {system}")
                found = measure(system, args.dir, file.absolute(), args.workloads)
                for workload, rate in found.items():
                    rates[file][workload][system].append(rate)
    rows = list(file_rows(rates))
    show_files(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if rows else 1


def is_there(system: str, folder: Path) -> bool:
    needed = [folder / MODELS[system]]
    needed += [] if system == "stepgraph" else [folder / system / "bin" / "python"]
    missing = [str(path) for path in needed if not path.exists()]
    if missing:
        note(f"{system} is left out: there is no {' and no '.join(missing)}")
    return not missing


def measure(system: str, folder: Path, model: Path, workloads: list[str]) -> dict[str, float]:
    """Output tokens/s of each workload, by one process of the system."""
    python = sys.executable if system == "stepgraph" else folder.absolute() / system / "bin/python"
    command = [python, PEERS / f"run_{system}.py", model.absolute(), *workloads]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {m[1]: float(m[2]) for m in map(LINE.match, done.stdout.splitlines()) if m}
    if done.returncode or set(found) != set(workloads):
        note(f"{system} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return found


def show(medians: dict[str, dict[str, float]], systems: list[str]) -> None:
    table = Table(title="output tokens/s (medians); ratios are stepgraph over the peer")
    table.add_column("workload")
    for system in systems:
        table.add_column(system, justify="right")
    others = [s for s in systems if s != "stepgraph"]
    for system in others:
        table.add_column(f"/ {system}", justify="right")
    for workload, of in medians.items():
        ours = of.get("stepgraph")
        cells = [f"{of[s]:.1f}" if s in of else "failed" for s in systems]
        cells += [f"{ours / of[s]:.2f}" if ours and s in of else "" for s in others]
        table.add_row(workload, *cells)
    Console(width=max(100, 16 * len(systems) + 16)).print(table)


COLOURS = ["#2f6db3", "#c0803a", "#5a9a68", "#8a6bb8", "#888888"]


def chart(medians: dict[str, dict[str, float]], systems: list[str]) -> str:
    """Bars of each workload, relative to the fastest system there."""
    bar, gap, left, width = 16, 18, 90, 620
    height = 60 + len(medians) * (bar * len(systems) + gap)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 130} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{left + width + 130}" height="{height}" fill="#fff"/>',
        '<text x="10" y="22" font-size="14" font-weight="600">output tokens/s, bars relative to '
        "the fastest of each workload</text>",
    ]
    y = 40
    for workload, of in medians.items():
        best = max(of.values())
        out.append(f'<text x="10" y="{y + 12}" font-weight="600">{workload}</text>')
        for system, colour in zip(systems, COLOURS, strict=False):
            rate = of.get(system, 0.0)
            length = width * rate / best
            out.append(
                f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 3}" '
                f'fill="{colour}"/><text x="{left + length + 6:.1f}" y="{y + 11}">{system} '
                f"{rate:.1f}</text>"
            )
            y += bar
        y += gap
    return "\n".join([*out, "</svg>"]) + "\n"


def note(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
