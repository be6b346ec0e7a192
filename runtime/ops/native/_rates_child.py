"""Run by path in a process of its own, with nothing but the standard library: times one kernel, so
that an instruction that the CPU does not have ends this process and no other.

argv: the library, then JSON: kernel, unit (or null), bytes_per_weight, has_tiles, inputs, rows.
Prints JSON: {"unit": operations a second, "rates": {inputs: {rows: operations a second}}}.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

TRIES = 7
MOST_WEIGHTS = 1 << 20
"""The layer is as wide as the model's, and has no more outputs than make so many."""
PANEL = 32
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
_P, _I64, _I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_Barrier = ctypes.CFUNCTYPE(None, _P)


class Team(ctypes.Structure):
    """stepgraph_kernel.h's"""

    _fields_ = (
        *(("thread", ctypes.c_int), ("num_threads", ctypes.c_int), ("barrier", _Barrier)),
        *(("next_item", ctypes.POINTER(_I64)), ("shared", _P)),
    )


class Unit(ctypes.Structure):
    """units.cpp's"""

    _fields_ = (("rounds", _I64), ("operations", ctypes.c_double), ("sum", ctypes.c_float))


class Linear(ctypes.Structure):
    """linear.h's"""

    _fields_ = (
        *((name, _P) for name in ("x", "weights", "scales", "sums", "bias", "out", "scratch")),
        *((name, _I64) for name in ("rows", "n_in", "n_out", "x_stride", "out_stride")),
        ("is_gated", _I32),
    )


def seconds(kernel: Any, args: ctypes.Structure) -> float:
    """Of the fastest of some runs, the first one left out."""
    team = Team(0, 1, _Barrier(lambda team: None), ctypes.pointer(_I64(0)), None)
    best = float("inf")
    for attempt in range(TRIES):
        begin = time.perf_counter()
        kernel(ctypes.byref(args), ctypes.byref(team))
        if attempt:
            best = min(best, time.perf_counter() - begin)
    return best


def unit_rate(kernel: Any) -> float:
    args = Unit(20_000)
    return seconds(kernel, args) and args.operations / seconds(kernel, args)


def filled(num_bytes: int) -> Any:
    """Aligned memory that has been written to: small positive numbers in every type."""
    memory = ctypes.create_string_buffer(num_bytes + 64)
    ctypes.memset(memory, 0x3C, len(memory))
    return memory


def linear_rate(kernel: Any, n_in: int, rows: int, bytes_per_weight: float) -> float:
    panels = max(1, MOST_WEIGHTS // n_in // PANEL)
    n_out = panels * PANEL
    sizes = {
        "x": 2 * rows * n_in,
        "weights": int(n_out * n_in * bytes_per_weight),
        "scales": 4 * n_out,
        "sums": 4 * n_out,
        "out": 2 * rows * n_out,
        "scratch": 4 * n_in * (rows + PANEL + 16),
    }
    memory = {name: filled(size) for name, size in sizes.items()}
    args = Linear(rows=rows, n_in=n_in, n_out=n_out, x_stride=n_in, out_stride=n_out)
    for name, buffer in memory.items():
        setattr(args, name, -(-ctypes.addressof(buffer) // 64) * 64)
    return 2 * rows * n_in * n_out / seconds(kernel, args)


def main() -> None:
    library, task = ctypes.CDLL(sys.argv[1]), json.loads(sys.argv[2])
    if task["has_tiles"]:
        numbers = map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
        ctypes.CDLL(None).syscall(*numbers)
    kernel, unit = getattr(library, task["kernel"]), task["unit"]
    found = {
        "unit": unit_rate(getattr(library, unit)) if unit else None,
        "rates": {
            n_in: {
                rows: linear_rate(kernel, n_in, rows, task["bytes_per_weight"])
                for rows in task["rows"]
            }
            for n_in in task["inputs"]
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
