#!/usr/bin/env python3
"""Time of paged attention on the CPU a layer: the native kernel beside its twin in plain torch.

usage: bench_attention.py [WORKLOAD ...] [--heads 9 3] [--head-dim 64] [--block-size 16]
                          [--dtype bfloat16] [--layers 30] [--threads 1] [--repeats 5]
                          [--isa NAME] [--no-twin] [--json FILE]

Workloads: prefill, 4 prompts of 512 tokens; mixed, 24 decoding requests and two chunks of prompts;
decode and decode-long, 32 requests at about 100 and 1,000 tokens; shared-prefix, 16 requests of 64
new tokens behind 448 that all share. Defaults are the sizes of SmolLM2-135M. Every layer has K/V of
its own, and as many bytes as the weights of such a model have are read before each run, so that K/V
come from memory as in a step. Medians of the process's CPU time over the threads, the two in turns.
GFLOP/s count what a causal mask leaves (4 * head_dim for each query and key), GB/s the K/V of each
request once, with those of its query heads that share them. `read` is what a sum gets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attention_backends import AttentionBackend, AttentionBatch, AttentionShape
from attention_backends.cpu_native import Backend
from attention_backends.torch_paged import Backend as Twin

NUM_RESERVED_BLOCKS = 2
WEIGHT_BYTES = 270 << 20
Call = Callable[[], object]


class Workload(NamedTuple):
    """One step's requests."""

    query_lens: list[int]
    seq_lens: list[int]
    shared: int = 0
    """Leading tokens that all requests have in common, whole blocks of them in the same place."""


WORKLOADS = {
    "prefill": Workload([512] * 4, [512] * 4),
    "mixed": Workload([1] * 24 + [256, 128], [*range(40, 520, 20), 256, 512]),
    "decode": Workload([1] * 32, [*range(84, 116)]),
    "decode-long": Workload([1] * 32, [*range(840, 1160, 10)]),
    "shared-prefix": Workload([64] * 16, [512] * 16, 448),
}


class Bench:
    """A workload's step over layers of K/V with random content."""

    def __init__(self, workload: Workload, options: argparse.Namespace) -> None:
        heads, kv_heads = options.heads
        dtype = getattr(torch, options.dtype)
        scale = options.head_dim**-0.5
        shape = AttentionShape(heads, kv_heads, options.head_dim, dtype, dtype, scale)
        self.shapes, self.workload = [shape] * options.layers, workload
        self.cpu, self.block_size = torch.device("cpu"), options.block_size
        self.native = Backend(self.shapes, self.block_size, self.cpu, options.isa)
        self.batch, self.num_blocks = self._make_batch()
        self.q = torch.randn(self.batch.num_tokens, heads, options.head_dim).to(dtype)
        self.out = torch.empty_like(self.q)

    def calls(self, with_twin: bool) -> list[Call]:
        """All layers of one step after its plan: native, twin, each over K/V in its own layout."""
        backends: list[AttentionBackend] = [self.native]
        if with_twin:
            backends.append(Twin(self.shapes, self.block_size, self.cpu))
        return [self._step(backend) for backend in backends]

    def _step(self, backend: AttentionBackend) -> Call:
        plan, kv = backend.plan(self.batch), backend.allocate_kv(self.num_blocks)
        for cache in (cache for layer in kv for cache in layer):
            cache.normal_()

        def run() -> None:
            for layer, layer_kv in enumerate(kv):
                backend.attend(layer, self.q, layer_kv, self.out, plan)

        return run

    def gflop(self) -> float:
        """Of a layer."""
        pairs = sum(
            q * (2 * n - q + 1) // 2
            for q, n in zip(self.workload.query_lens, self.workload.seq_lens, strict=True)
        )
        return 4e-9 * pairs * self.shapes[0].num_q_heads * self.shapes[0].head_dim

    def kv_gb(self) -> float:
        """Of a layer."""
        shape = self.shapes[0]
        per_token = 2 * shape.num_kv_heads * shape.head_dim * shape.kv_dtype.itemsize
        return 1e-9 * sum(self.workload.seq_lens) * per_token

    def _make_batch(self) -> tuple[AttentionBatch, int]:
        queries, lens = (np.array(numbers, np.int32) for numbers in self.workload[:2])
        counts = -(-lens // self.block_size)
        num_shared = self.workload.shared // self.block_size
        num_own = int((counts - num_shared).sum())
        free = iter(np.random.default_rng(0).permutation(num_own) + NUM_RESERVED_BLOCKS)
        shared = range(NUM_RESERVED_BLOCKS + num_own, NUM_RESERVED_BLOCKS + num_own + num_shared)
        table = np.zeros((len(lens), counts.max()), np.int32)
        for row, count in zip(table, counts, strict=True):
            row[:count] = [*shared, *(next(free) for _ in range(count - num_shared))]
        starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
        batch = AttentionBatch(
            num_tokens=int(starts[-1]),
            num_reqs=len(lens),
            query_start_loc=torch.from_numpy(starts),
            seq_lens=torch.from_numpy(lens),
            block_table=torch.from_numpy(table),
            slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64),
            query_start_loc_cpu=starts,
            seq_lens_cpu=lens,
            block_table_cpu=table,
            max_query_len=int(queries.max()),
            max_seq_len=int(lens.max()),
        )
        return batch, NUM_RESERVED_BLOCKS + num_own + num_shared


def median_s(calls: list[Call], weights: Tensor, repeats: int) -> list[float]:
    """Of each, taken in turns, after a run that is not counted."""
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, found in zip(calls, times, strict=True):
            weights.sum()
            begin = time.process_time()
            call()
            if repeat:
                found.append((time.process_time() - begin) / torch.get_num_threads())
    return [statistics.median(found) for found in times]


def measure(workload: Workload, weights: Tensor, options: argparse.Namespace) -> dict[str, float]:
    bench = Bench(workload, options)
    native_s, *twin_s = (
        seconds / options.layers
        for seconds in median_s(bench.calls(not options.no_twin), weights, options.repeats)
    )
    found = {
        "native_ms": native_s * 1e3,
        "gflop_per_s": bench.gflop() / native_s,
        "kv_gb_per_s": bench.kv_gb() / native_s,
    }
    if twin_s:
        found["twin_ms"] = twin_s[0] * 1e3
    return found


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--heads", type=int, nargs=2, default=[9, 3], metavar=("QUERY", "KV"))
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16, help="tokens")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--isa", help="instruction set; the best one here where not given")
    parser.add_argument("--no-twin", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"WORKLOAD {name!r} is not one of {', '.join(WORKLOADS)}")
    for name in ("layers", "threads", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


@torch.inference_mode()
def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    weights = torch.ones(WEIGHT_BYTES // 8, dtype=torch.int64)
    read = weights.nbytes / median_s([weights.sum], weights, options.repeats)[0]
    results = {
        name: measure(WORKLOADS[name], weights, options) for name in options.workloads or WORKLOADS
    }
    title = f"a layer, {options.threads} thread(s); read {read / 1e9:.1f} GB/s a thread"
    table = Table("workload", "native ms", "GFLOP/s", "K/V GB/s", "twin ms", title=title)
    for name, found in results.items():
        ms, gflop, gb = (found[key] for key in ("native_ms", "gflop_per_s", "kv_gb_per_s"))
        twin = f"{found['twin_ms']:.3f}" if "twin_ms" in found else ""
        table.add_row(name, f"{ms:.3f}", f"{gflop:.1f}", f"{gb:.2f}", twin)
    Console().print(table)
    if options.json:
        record = {"threads": options.threads, "read_gb_per_s": read / 1e9, "workloads": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
