"""`bench_peers.py --files`: what the runs of each file say, beside the rate of memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

FileRates = Mapping[Path, Mapping[str, Mapping[str, list[float]]]]
"""file -> workload -> system -> output tokens/s of each round"""

_READ_BYTES, _TRIES = 1 << 28, 5


def file_rows(rates: FileRates) -> Iterator[dict[str, Any]]:
    """A row a file and workload: medians, ours over theirs; for `single`, where a step reads every
    weight once, the bytes of the file a second, and their share of what a sum reads."""
    read = read_rate()
    for file, workloads in rates.items():
        for workload, systems in workloads.items():
            medians = {system: statistics.median(found) for system, found in systems.items()}
            row: dict[str, Any] = {"file": file.name, "workload": workload, **medians}
            if len(medians) == 2:
                row["ratio"] = medians["stepgraph"] / medians["llamacpp"]
            if workload == "single" and "stepgraph" in medians:
                row["gb_per_s"] = medians["stepgraph"] * file.stat().st_size / 1e9
                row["read_gb_per_s"] = read / 1e9
            yield row


def read_rate() -> float:
    """Bytes a second that all threads sum from memory."""
    memory = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    best = float("inf")
    for _ in range(_TRIES):
        begin = time.perf_counter()
        memory.sum()
        best = min(best, time.perf_counter() - begin)
    return _READ_BYTES / best


def show_files(rows: list[dict[str, Any]]) -> None:
    table = Table(
        title="output tokens/s (medians); GB/s: bytes of the file at each token of single"
    )
    for name in ("file", "workload", "stepgraph", "llamacpp", "ratio", "GB/s", "of memory's"):
        table.add_column(name, justify="left" if name in ("file", "workload") else "right")
    for row in rows:
        cells = [f"{row[s]:.1f}" if s in row else "failed" for s in ("stepgraph", "llamacpp")]
        cells.append(f"{row['ratio']:.2f}" if "ratio" in row else "")
        if "gb_per_s" in row:
            share = row["gb_per_s"] / row["read_gb_per_s"]
            cells += [f"{row['gb_per_s']:.1f}", f"{row['read_gb_per_s']:.1f} ({share:.0%})"]
        table.add_row(row["file"], row["workload"], *cells)
    Console(width=110).print(table)
