"""What each way to multiply does a second on this machine: measured once, kept with the kernels."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_backends import NativeLibrary, cpu_identity

ROWS = (1, 4, 8, 16, 32, 64)
PATHS = ("float", "dot", "vnni", "tiles")
"""The ways to multiply, of which a library has some for each kind of weight."""
_INPUT_STEP, _MOST_INPUTS = 512, 8192
_TIMEOUT_S = 60.0
_CHILD = Path(__file__).parent / "_rates_child.py"
_log = logging.getLogger(__name__)


class PathRates(NamedTuple):
    """One way to multiply, of one thread."""

    unit: float | None
    """Operations a second of its instruction alone; None where that is not measured"""

    by_rows: dict[int, float]
    """Rows -> operations a second, the mean over the widths"""


def able_paths(library: NativeLibrary, kind: str) -> list[str]:
    """Those that the library has."""
    return [path for path in PATHS if hasattr(library.handle, f"linear_{kind}_{path}")]


def measured_widths(inputs: Sequence[int]) -> list[int]:
    """The narrowest and the widest, in steps, so that models that are alike share what is kept."""
    steps = sorted(min(-(-n_in // _INPUT_STEP) * _INPUT_STEP, _MOST_INPUTS) for n_in in inputs)
    return sorted({steps[0], steps[-1]})


def measure(
    library: NativeLibrary, kind: str, inputs: Sequence[int], bytes_per_weight: float
) -> dict[str, PathRates]:
    """Path -> its rates, from the cache or, some milliseconds each, measured now in processes of
    their own. What does not run here is left out.

    Args:
        kind: of weight.
        inputs: of the model's layers.
        bytes_per_weight: of the packed form.
    """
    widths = measured_widths(inputs)
    what = [library.path.name, kind, *map(str, (*widths, *ROWS)), cpu_identity()]
    digest = hashlib.sha256("\0".join([*what, _CHILD.read_text()]).encode()).hexdigest()[:20]
    target = library.path.parent / f"rates-{kind}-{digest}.json"
    try:
        kept = json.loads(target.read_text())
        return {path: _rates_of(found) for path, found in kept.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        pass  # not yet, or not whole
    found = {
        path: _ask(library, kind, path, widths, bytes_per_weight)
        for path in able_paths(library, kind)
    }
    ran = {path: answer for path, answer in found.items() if answer is not None}
    if ran:
        _keep(target, ran)
    return {path: _rates_of(answer) for path, answer in ran.items()}


def _ask(
    library: NativeLibrary, kind: str, path: str, widths: Sequence[int], bytes_per_weight: float
) -> dict[str, Any] | None:
    unit = f"unit_{path}"
    task = {
        "kernel": f"linear_{kind}_{path}",
        "unit": unit if hasattr(library.handle, unit) else None,
        "bytes_per_weight": bytes_per_weight,
        "has_tiles": path == "tiles",
        "inputs": list(widths),
        "rows": ROWS,
    }
    command = [sys.executable, "-I", str(_CHILD), str(library.path), json.dumps(task)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if ran.returncode == 0:
            return dict(json.loads(ran.stdout))
        problem = f"status {ran.returncode} {ran.stderr.strip()[-200:]}"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        problem = str(error)
    _log.warning("linear layers do not take the path %s, which fails here: %s", path, problem)
    return None


def _keep(target: Path, found: dict[str, Any]) -> None:
    temporary = target.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(json.dumps(found))
        temporary.replace(target)
    except OSError:
        _log.debug("rates could not be kept in %s", target)


def _rates_of(found: dict[str, Any]) -> PathRates:
    widths = list(found["rates"].values())
    by_rows = {
        rows: sum(float(width[str(rows)]) for width in widths) / len(widths) for rows in ROWS
    }
    return PathRates(found["unit"], by_rows)
