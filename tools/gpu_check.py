#!/usr/bin/env python3
"""One look at a GPU: is everything right on it, and how near to what it can do?

usage: gpu_check.py [--seconds 330] [--json FILE] [--device cuda|cpu] [--tiny]
                    [--sections ops,attention,exact,speed]

Needs torch, triton and numpy; FlashAttention and FlashInfer are tried where they are installed. No
network, no model files: the weights are random, of Qwen3-8B's shape, and of a tiny model where
results are compared. Each line ends in ok, FAIL or skipped with a reason; after each section all
lines are written as JSON. It stops at the time limit with what it has.

Exit codes: 0 no FAIL; 1 a FAIL; 2 no CUDA device (`--device cpu --tiny` tries the check itself on a
CPU); 3 the time limit struck inside a section.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from tools._gpu_check import ceilings, versions
from tools._gpu_check.attention_numerics import check_backends
from tools._gpu_check.exactness import check_modes
from tools._gpu_check.op_numerics import check_ops
from tools._gpu_check.report import FAIL, Deadline, Report
from tools._gpu_check.scale import Scale, spec_of, tiny, whole
from tools._gpu_check.speed import check_speed
from tools._gpu_check.subject import load

SHARES = {"ops": 0.1, "attention": 0.15, "exact": 0.2, "speed": 0.55}
"""Of the time; what a section leaves goes to those after it."""
NO_DEVICE, OUT_OF_TIME = 2, 3
GRACE_S = 20.0
"""After the limit, for what cannot be interrupted: then the process ends itself."""


def main(arguments: list[str] | None = None) -> int:
    """Run the sections; the exit code."""
    options = _parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no device"
        print(f"gpu_check: no CUDA device: {why}; --device cpu --tiny tries the check on the CPU")
        return NO_DEVICE
    device = torch.device(options.device)
    scale = tiny(device) if options.tiny else whole(device)
    about = {"versions": versions.collect(device), "tiny": options.tiny, "device": str(device)}
    report = Report(options.json, about)
    for name, value in about["versions"].items():
        print(f"{name:<18} {value}")
    guard = threading.Timer(options.seconds + GRACE_S, _end, (report,))
    guard.daemon = True
    guard.start()
    try:
        _run_sections(scale, options.sections, options.seconds, report)
    finally:
        guard.cancel()
        report.save()
    print("  ".join(f"{count} {verdict}" for verdict, count in report.counts.items()))
    return 1 if report.counts[FAIL] else 0


def _run_sections(scale: Scale, wanted: list[str], seconds: float, report: Report) -> None:
    started = time.monotonic()
    total = sum(SHARES[name] for name in wanted)
    share = 0.0
    for name in wanted:
        share += SHARES[name] / total
        deadline = Deadline(started + seconds * share)
        _guarded(
            name,
            lambda name=name, deadline=deadline: SECTIONS[name](scale, report, deadline),
            report,
        )
        report.save()
    report.is_whole = True


def _guarded(name: str, section: Callable[[], None], report: Report) -> None:
    """A section that breaks is a FAIL, and the next one is run all the same."""
    try:
        section()
    except Exception as error:
        traceback.print_exc()
        report.add(name, "the section itself", FAIL, f"{type(error).__name__}: {error}")


def _speed(scale: Scale, report: Report, deadline: Deadline) -> None:
    spec = spec_of(scale.speed_config)
    found = ceilings.measure(scale, getattr(torch, spec.dtype), report)
    check_speed(scale, load(spec, scale.device), found, report, deadline)


SECTIONS: dict[str, Callable[[Scale, Report, Deadline], None]] = {
    "ops": check_ops,
    "attention": check_backends,
    "exact": check_modes,
    "speed": _speed,
}


def _end(report: Report) -> None:
    print("gpu_check: the time limit struck inside a section; what there is has been kept")
    report.save()
    sys.stdout.flush()
    os._exit(OUT_OF_TIME)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=330.0, help="time limit (330)")
    parser.add_argument("--json", type=Path, default=None, help="where the lines are written")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes: seconds, not minutes")
    parser.add_argument(
        "--sections",
        type=lambda text: text.split(","),
        default=list(SECTIONS),
        help=f"some of {','.join(SECTIONS)}",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"--sections: unknown {', '.join(sorted(unknown))}; some of {list(SECTIONS)}")
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu needs --tiny: Qwen3-8B's shape is for a GPU")
    return options


if __name__ == "__main__":
    sys.exit(main())
