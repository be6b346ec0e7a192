#!/usr/bin/env python3
"""One look at a GPU: is everything right on it, and how near to what it can do?

usage: gpu_check.py [--seconds 310] [--json FILE] [--device cuda|cpu] [--tiny]
                    [--sections ops,attention,exact,speed]

Needs torch, triton and numpy, and nothing else: FlashAttention and FlashInfer are tried where they
are installed. No network, no model files: the weights are random, of Qwen3-8B's shape, and of a
tiny model where results are compared. Each line ends in ok, FAIL or skipped with a reason; after
each section all lines are written as JSON. The time limit counts from the start of the process; at
the limit it stops with what it has.

Exit codes: 0 no FAIL; 1 a FAIL; 2 nothing to run on: no CUDA device (`--device cpu --tiny` tries
the check itself on a CPU), or a package is missing; 3 the time limit struck inside a section.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools._gpu_check.report import FAIL, Deadline, Report

if TYPE_CHECKING:
    from tools._gpu_check.scale import Scale
    from tools._gpu_check.sections import Section

SHARES = {"ops": 0.1, "attention": 0.15, "exact": 0.25, "speed": 0.5}
"""Sections, and of the time; what a section leaves goes to those after it."""
NOTHING_TO_RUN_ON, OUT_OF_TIME = 2, 3
LIMIT_S = 310.0
GRACE_S = 20.0
"""After the limit, for what cannot be interrupted: then the process ends itself."""


def main(arguments: list[str] | None = None) -> int:
    """Run the sections; the exit code. What takes time to import is imported in here."""
    options = _parse(arguments)
    report = Report(options.json, {"tiny": options.tiny, "device": options.device})
    end = time.monotonic() + options.seconds
    guard = threading.Timer(options.seconds + GRACE_S, _end, (report,))
    guard.daemon = True
    guard.start()
    try:
        if reason := _nothing_to_run_on(options.device):
            print(f"gpu_check: {reason}")
            return NOTHING_TO_RUN_ON
        _run(options, end, report)
    finally:
        guard.cancel()
    print("  ".join(f"{count} {verdict}" for verdict, count in report.counts.items()))
    return 1 if report.counts[FAIL] else 0


def _has_cuda() -> bool:
    if not _is_installed("torch"):
        return True  # torch is asked for first
    import torch

    return torch.cuda.is_available()


def _nothing_to_run_on(device: str) -> str:
    """What is missing, in a line; "" where nothing is."""
    needed = ["torch", "numpy"] + ["triton"] * (device == "cuda" and _has_cuda())
    missing = [name for name in needed if not _is_installed(name)]
    if missing:
        names = " ".join(missing)
        return f"needs {', '.join(needed)}; not installed here: {names} (pip install {names})"
    if device == "cuda" and not _has_cuda():
        import torch

        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no device"
        return f"no CUDA device: {why}; --device cpu --tiny tries the check on the CPU"
    return ""


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def _run(options: argparse.Namespace, end: float, report: Report) -> None:
    import torch

    from tools._gpu_check import versions
    from tools._gpu_check.scale import tiny, whole
    from tools._gpu_check.sections import SECTIONS

    device = torch.device(options.device)
    report.about["versions"] = versions.collect(device)
    for name, value in report.about["versions"].items():
        print(f"{name:<18} {value}")
    scale = tiny(device) if options.tiny else whole(device)
    try:
        _run_sections(scale, {name: SECTIONS[name] for name in options.sections}, end, report)
    finally:
        report.save()


def _run_sections(scale: Scale, sections: dict[str, Section], end: float, report: Report) -> None:
    started = time.monotonic()
    total = sum(SHARES[name] for name in sections)
    share = 0.0
    for name, section in sections.items():
        share += SHARES[name] / total
        deadline = Deadline(started + (end - started) * share)
        with report.guard(name, "the section itself"):
            section(scale, report, deadline)
        report.save()
    report.is_whole = True


def _end(report: Report) -> None:
    print("gpu_check: the time limit struck inside a section; what there is has been kept")
    report.save()
    sys.stdout.flush()
    os._exit(OUT_OF_TIME)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=LIMIT_S, help=f"from the start ({LIMIT_S:g})"
    )
    parser.add_argument("--json", type=Path, default=None, help="where the lines are written")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes: seconds, not minutes")
    parser.add_argument(
        "--sections",
        type=lambda text: text.split(","),
        default=list(SHARES),
        help=f"some of {','.join(SHARES)}",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.sections) - set(SHARES)
    if unknown:
        parser.error(f"--sections: unknown {', '.join(sorted(unknown))}; some of {list(SHARES)}")
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu needs --tiny: Qwen3-8B's shape is for a GPU")
    return options


if __name__ == "__main__":
    sys.exit(main())
