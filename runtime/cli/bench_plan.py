"""What the flags of `stepgraph bench` come to, with every file read or looked at."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.config import RunConfig
from runtime.errors import ConfigError
from runtime.workbench.arrivals import Arrivals
from runtime.workbench.charts import check_charts
from runtime.workbench.dataset_files import TraceDataset, read_arrivals, read_jsonl, read_trace
from runtime.workbench.datasets import Dataset, Lengths, RandomDataset, SharedPrefixDataset
from runtime.workbench.goodput import parse_slos
from runtime.workbench.output_file import OutputFile
from runtime.workbench.tasks import BatchTask, LoadTask, Task

DEFAULT_NUM_PROMPTS = 64
_FITS = {
    "dataset_path": ("jsonl", "trace"),
    "input_len": ("random", "shared-prefix"),
    "output_len": ("random", "shared-prefix"),
    "num_prefixes": ("shared-prefix",),
    "prefix_len": ("shared-prefix",),
    "ignore_eos": ("jsonl",),
}
"""The datasets that a flag belongs to."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the figures go besides the table."""

    json: OutputFile | None
    """None where there is none, or it is standard output."""
    is_json_stdout: bool
    chart: OutputFile | None
    metadata: Mapping[str, str]


def task_of(args: argparse.Namespace, config: RunConfig) -> Task:
    """What the flags ask to run.

    Raises:
        ConfigError: flags that do not go together, files that cannot be read.
    """
    _check_one_sample(config.sampling, "sampling")
    if args.kind == "latency":
        inputs, outputs = (Lengths(n, n) for n in (args.input_len, args.output_len))
        dataset = RandomDataset(inputs, outputs, config.sampling)
        batches = (args.batch_size, args.num_iters, args.num_iters_warmup)
        return BatchTask(dataset, *batches, args.seed)
    return _load_task(args, config)


def _load_task(args: argparse.Namespace, config: RunConfig) -> LoadTask:
    dataset, available = _dataset(args, config)
    count = args.num_prompts or available or DEFAULT_NUM_PROMPTS
    if available is not None and count > available:
        raise ConfigError(f"--num-prompts {count}: {args.dataset_path} has {available} requests")
    if args.kind == "throughput":
        return LoadTask(dataset, count, Arrivals(), args.seed, args.num_warmups)
    task = LoadTask(
        dataset,
        count,
        _arrivals(args, dataset),
        args.seed,
        args.num_warmups,
        args.max_concurrency,
        parse_slos(args.goodput, "--goodput") or None,
    )
    task.due_s()
    return task


def outputs_of(args: argparse.Namespace, config: RunConfig) -> Outputs:
    """Where the figures go.

    Raises:
        ConfigError: a file that cannot be written, metadata that is no KEY=VALUE.
    """
    metadata = {}
    for word in args.metadata:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"--metadata {word}: must be KEY=VALUE")
        metadata[key] = value
    is_stdout = args.json == "-"
    path = (
        None if args.json is None or is_stdout else _json_path(args, Path(config.model.path).stem)
    )
    return Outputs(
        None if path is None else OutputFile(path, "--json"),
        is_stdout,
        None if args.chart is None else check_charts(args.chart, "--chart"),
        metadata,
    )


def _dataset(args: argparse.Namespace, config: RunConfig) -> tuple[Dataset, int | None]:
    """With how many requests it has; None where they are drawn."""
    name: str = args.dataset
    for flag, datasets in _FITS.items():
        if getattr(args, flag) and name not in datasets:
            words = f"--{flag.replace('_', '-')}"
            raise ConfigError(f"{words}: goes with --dataset {' or '.join(datasets)}, not {name}")
    if name in _FITS["dataset_path"] and args.dataset_path is None:
        raise ConfigError(f"--dataset {name}: needs --dataset-path F.jsonl")
    if name == "jsonl":
        changes = {"ignore_eos": True} if args.ignore_eos else {}
        lines = read_jsonl(args.dataset_path, "--dataset-path", changes)
        for number, request in enumerate(lines.all_requests):
            _check_one_sample(request.sampling, f"--dataset-path: request {number} (from 0)")
        return lines, len(lines.all_requests)
    if name == "trace":
        trace = read_trace(args.dataset_path, "--dataset-path", config.sampling)
        return trace, len(trace.lines)
    lengths = Lengths(*(args.input_len or (256, 256))), Lengths(*(args.output_len or (64, 64)))
    drawn = RandomDataset(*lengths, config.sampling)
    if name == "random":
        return drawn, None
    return SharedPrefixDataset(args.num_prefixes or 8, args.prefix_len or 256, drawn), None


def _check_one_sample(sampling: Mapping[str, Any], where: str) -> None:
    if sampling.get("n", 1) != 1:
        raise ConfigError(f"{where}: n must be 1 in a benchmark, got {sampling['n']}")


def _arrivals(args: argparse.Namespace, dataset: Dataset) -> Arrivals:
    rate = math.inf if args.request_rate is None else args.request_rate
    kind = args.arrivals or _kind_by_flags(args, rate)
    needs_rate = kind in ("poisson", "gamma", "constant")
    if needs_rate and rate == math.inf:
        raise ConfigError(f"--arrivals {kind}: needs a finite --request-rate")
    if not needs_rate and rate < math.inf:
        raise ConfigError(f"--request-rate: has no meaning for --arrivals {kind}")
    if args.burstiness is not None and kind != "gamma":
        raise ConfigError(f"--burstiness: has no meaning for --arrivals {kind}; gamma has it")
    if kind != "trace":
        for flag in ("arrival_trace", "time_scale"):
            if getattr(args, flag) is not None:
                raise ConfigError(f"--{flag.replace('_', '-')}: goes with --arrivals trace")
        burstiness = 1.0 if args.burstiness is None else args.burstiness
        return Arrivals(kind, rate, burstiness)
    return Arrivals(kind, trace_s=_trace_times(args, dataset))


def _kind_by_flags(args: argparse.Namespace, rate: float) -> str:
    if rate < math.inf or args.burstiness is not None:
        return "poisson" if args.burstiness is None else "gamma"
    return "trace" if args.arrival_trace or args.dataset == "trace" else "infinite"


def _trace_times(args: argparse.Namespace, dataset: Dataset) -> tuple[float, ...]:
    if args.arrival_trace is not None:
        times = read_arrivals(args.arrival_trace, "--arrival-trace")
    elif isinstance(dataset, TraceDataset):
        times = tuple(line.time_s for line in dataset.lines)
    else:
        raise ConfigError("--arrivals trace: needs --arrival-trace F.jsonl")
    return tuple(time_s * (args.time_scale or 1.0) for time_s in times)


def _json_path(args: argparse.Namespace, model: str) -> str:
    """The file; in a folder, {label}-{rate}qps[-concurrencyN]-{model}-{date}.json."""
    path: str = args.json
    if not os.path.isdir(path):
        return path
    rate = getattr(args, "request_rate", None)
    parts = [args.label, "infqps" if rate is None else f"{rate:g}qps"]
    limit = getattr(args, "max_concurrency", None)
    parts += [] if limit is None else [f"concurrency{limit}"]
    parts += [model, time.strftime("%Y%m%d-%H%M%S")]
    return os.path.join(path, "-".join(parts).replace(os.sep, "_") + ".json")
