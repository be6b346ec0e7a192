"""What a benchmark runs: one load over time, or the same batch again and again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runtime.workbench.arrivals import Arrivals
from runtime.workbench.datasets import Dataset
from runtime.workbench.metrics import summarize
from runtime.workbench.records import LoadRun, joined
from runtime.workbench.session import Bench

PROMPTS, WARM_UPS, ARRIVALS = range(3)
"""Streams of random numbers of one seed, so that none moves another."""
BATCH_PERCENTILES = (10, 25, 50, 75, 90, 99)


class Task(Protocol):
    """Something to measure."""

    @property
    def num_requests(self) -> int:
        """Of the measured part."""

    def run(self, bench: Bench, vocabulary: Sequence[int]) -> LoadRun:
        """Warm up and measure.

        Args:
            vocabulary: token ids that prompts are drawn from.
        """

    def settings(self) -> dict[str, Any]:
        """What was asked, for the result file."""

    def figures(self, run: LoadRun, percentiles: Sequence[float]) -> dict[str, Any]:
        """What came of it; see metrics.summarize."""


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Requests of a dataset that come at given times."""

    dataset: Dataset
    num_requests: int
    arrivals: Arrivals
    seed: int
    num_warmups: int = 0
    max_concurrency: int | None = None
    slos: Mapping[str, float] | None = None

    def due_s(self) -> list[float]:
        """When each request comes, in seconds from the start.

        Raises:
            ConfigError: a trace has fewer arrivals.
        """
        rng = np.random.default_rng([self.seed, ARRIVALS])
        return [float(time_s) for time_s in self.arrivals.times(self.num_requests, rng)]

    def run(self, bench: Bench, vocabulary: Sequence[int]) -> LoadRun:
        """See Task."""
        warm_ups = np.random.default_rng([self.seed, WARM_UPS])
        bench.warm_up(self.dataset.requests(self.num_warmups, vocabulary, warm_ups))
        prompts = np.random.default_rng([self.seed, PROMPTS])
        requests = self.dataset.requests(self.num_requests, vocabulary, prompts)
        return bench.run(requests, self.due_s(), self.max_concurrency)

    def settings(self) -> dict[str, Any]:
        """See Task."""
        rate = self.arrivals.rate
        return {
            "dataset": self.dataset.name,
            "num_prompts": self.num_requests,
            "num_warmups": self.num_warmups,
            "seed": self.seed,
            "arrivals": self.arrivals.kind,
            "request_rate": "inf" if rate == math.inf else rate,
            "burstiness": self.arrivals.burstiness,
            "max_concurrency": self.max_concurrency,
            "goodput_slos_ms": None if self.slos is None else dict(self.slos),
        }

    def figures(self, run: LoadRun, percentiles: Sequence[float]) -> dict[str, Any]:
        """See Task."""
        return summarize(
            run,
            slos=self.slos,
            percentiles=percentiles,
            has_client_queue=self.max_concurrency is not None,
        )


@dataclass(frozen=True, slots=True)
class BatchTask:
    """Batches of one size, each begun when the one before has ended; no two prompts are equal."""

    dataset: Dataset
    batch_size: int
    num_batches: int
    num_warmup_batches: int
    seed: int

    @property
    def num_requests(self) -> int:
        return self.batch_size * self.num_batches

    def run(self, bench: Bench, vocabulary: Sequence[int]) -> LoadRun:
        """See Task."""
        warm_ups = np.random.default_rng([self.seed, WARM_UPS])
        for _ in range(self.num_warmup_batches):
            bench.warm_up(self.dataset.requests(self.batch_size, vocabulary, warm_ups))
        prompts = np.random.default_rng([self.seed, PROMPTS])
        runs = []
        for _ in range(self.num_batches):
            batch = self.dataset.requests(self.batch_size, vocabulary, prompts)
            runs.append(bench.run(batch, [0.0] * self.batch_size))
            if not runs[-1].is_whole:
                break
        return joined(runs)

    def settings(self) -> dict[str, Any]:
        """See Task."""
        return {
            "batch_size": self.batch_size,
            "num_iters": self.num_batches,
            "num_iters_warmup": self.num_warmup_batches,
            "seed": self.seed,
        }

    def figures(self, run: LoadRun, percentiles: Sequence[float]) -> dict[str, Any]:
        """See Task; before these the latency of each batch, in seconds: first request sent to last
        one ended."""
        batches: dict[int, list[tuple[float, float]]] = {}
        for record in run.completed:
            times = (record.sent_s, record.end_s)
            batches.setdefault(record.index // self.batch_size, []).append(times)
        latencies = [max(e for _, e in b) - min(s for s, _ in b) for b in batches.values()]
        return {
            "avg_latency": float(np.mean(latencies)) if latencies else None,
            "latencies": latencies,
            "percentiles": {
                str(p): float(np.percentile(latencies, p)) if latencies else None
                for p in BATCH_PERCENTILES
            },
            **summarize(run, percentiles=percentiles),
        }
