#!/usr/bin/env python3
"""Host time of a step with a null model: schedule, build the batch, update.

usage: bench_step.py [--json FILE] [--running 1 64 256 1024] [--steps 160]

decode: N requests, each one token a step. mixed: the same N, and beside them max(1, N/64) whole
prompts a step, which end with it. Prompts have 200 tokens, blocks 16. `build` is the runner's
states.apply, InputBatch.build and write_tokens. Medians over the steps; nothing else is run, and
the garbage collector is on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphs._keys import GraphKey, Kind
from runtime.config.sections import SchedulerConfig
from runtime.data.params import SamplingParams
from runtime.data.request import Request
from runtime.data.step import RunnerOutput, SchedulerOutput, StepShape
from runtime.runner.buffers import InputBuffers
from runtime.runner.input_batch import InputBatch
from runtime.runner.states import RequestStates
from runtime.scheduler import Scheduler

BLOCK_SIZE = 16
NUM_BLOCKS = 60_000
PROMPT_LEN = 200
BUDGET = 8192
MAX_MODEL_LEN = 4096
TOKEN_ID = 5


class NullRunner:
    """The host side of a runner; its model always says the same token."""

    def __init__(self, max_num_seqs: int) -> None:
        self.states = RequestStates(max_num_seqs, MAX_MODEL_LEN, BLOCK_SIZE)
        width = max(MAX_MODEL_LEN, BUDGET) // BLOCK_SIZE
        self.buffers = InputBuffers(BUDGET, max_num_seqs + 1, width, torch.device("cpu"))

    def execute(self, so: SchedulerOutput) -> RunnerOutput:
        self.states.apply(so)
        key = GraphKey(Kind.EAGER, so.num_tokens, so.num_reqs)
        batch = InputBatch.build(so, self.states, self.buffers, key)
        token_ids = np.full(len(batch.sample_rows), TOKEN_ID, np.int32)
        self.states.write_tokens(batch.sample_rows, batch.sample_positions, token_ids)
        shape = StepShape(so.num_tokens, so.num_tokens, so.num_reqs, so.num_reqs, key.kind.value)
        return RunnerOutput(token_ids, shape)


class Load:
    """N long decodes, and `per_step` new prompts that end with their first token."""

    def __init__(self, num_running: int, per_step: int, num_steps: int) -> None:
        config = SchedulerConfig(max_num_batched_tokens=BUDGET, max_num_seqs=num_running + per_step)
        self.scheduler = Scheduler(
            config, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN
        )
        self.runner = NullRunner(config.max_num_seqs)
        self._num_added = 0
        self._per_step = per_step
        for _ in range(num_running):
            self._add(max_tokens=num_steps + num_running)
        while self.scheduler.num_waiting:
            self.step()

    def step(self) -> tuple[SchedulerOutput, list[float]]:
        """One step; the seconds of schedule, build and update."""
        times = [time.perf_counter()]
        so = self.scheduler.schedule()
        times.append(time.perf_counter())
        ro = self.runner.execute(so)
        times.append(time.perf_counter())
        self.scheduler.update_from_output(so, ro)
        times.append(time.perf_counter())
        return so, np.diff(times).tolist()

    def step_with_arrivals(self) -> tuple[SchedulerOutput, list[float]]:
        for _ in range(self._per_step):
            self._add(max_tokens=1)
        return self.step()

    def _add(self, max_tokens: int) -> None:
        """A prompt that shares no block with another."""
        self._num_added += 1
        prompt = [self._num_added, *range(PROMPT_LEN - 1)]
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add(Request(str(self._num_added), prompt, params))


class Times(NamedTuple):
    """Milliseconds a step: medians of the parts, median and 99th percentile of their sum."""

    schedule_ms: float
    build_ms: float
    update_ms: float
    total_ms: float
    p99_ms: float


def measure(kind: str, num_running: int, num_steps: int) -> Times:
    """Times over `num_steps` steps of just this kind, after a warm-up of 20."""
    per_step = max(1, num_running // 64) if kind == "mixed" else 0
    load = Load(num_running, per_step, num_steps + 20)
    rows = []
    for step in range(num_steps + 20):
        so, seconds = load.step_with_arrivals()
        assert so.num_reqs == num_running + per_step, "not a steady state"
        assert so.num_tokens == num_running + per_step * PROMPT_LEN, "not a steady state"
        if step >= 20:
            rows.append(seconds)
    parts = np.array(rows) * 1e3
    totals = parts.sum(axis=1)
    return Times(*np.median(parts, axis=0), np.median(totals), np.percentile(totals, 99))


def show(results: dict[str, dict[int, Times]], console: Console) -> None:
    table = Table(title="host time of a step, ms (null model)")
    table.add_column("step")
    for name in ("running", "schedule", "build", "update", "schedule+update", "all", "all p99"):
        table.add_column(name, justify="right")
    for kind, by_count in results.items():
        for count, t in by_count.items():
            columns = (*t[:3], t.schedule_ms + t.update_ms, t.total_ms, t.p99_ms)
            table.add_row(kind, f"{count:,}", *(f"{value:.3f}" for value in columns))
    console.print(table)


def as_json(results: dict[str, dict[int, Times]]) -> str:
    names = ("schedule_ms", "build_ms", "update_ms")
    data = {
        kind: {str(n): {k: round(getattr(t, k), 4) for k in names} for n, t in by_count.items()}
        for kind, by_count in results.items()
    }
    return json.dumps(data, indent=2) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians there too")
    parser.add_argument("--running", type=int, nargs="+", default=[1, 64, 256, 1024], metavar="N")
    parser.add_argument("--steps", type=int, default=160, help="measured steps of each kind")
    args = parser.parse_args()
    if args.steps < 1 or min(args.running) < 1:
        parser.error("--steps and --running must be at least 1")
    results = {
        kind: {n: measure(kind, n, args.steps) for n in args.running}
        for kind in ("decode", "mixed")
    }
    show(results, Console())
    if args.json:
        args.json.write_text(as_json(results))


if __name__ == "__main__":
    main()
