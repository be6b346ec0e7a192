"""The figures of a run, under the names that vLLM's serving benchmark gives them.

TTFT is sent to first token, TPOT (latency - TTFT) / (output tokens - 1), ITL each gap between two
tokens, E2EL the latency: sent to the end. Rates are per second of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from runtime.workbench.goodput import Slos, num_good
from runtime.workbench.records import FloatArray, LoadRun, RequestRecord

METRICS = ("ttft", "tpot", "itl", "e2el")
DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def summarize(
    run: LoadRun,
    *,
    slos: Slos | None = None,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
    has_client_queue: bool = False,
) -> dict[str, Any]:
    """Totals, rates, and mean, median, std and percentiles of each metric in milliseconds.

    What no request has a value of is None.

    Args:
        slos: limits for request_goodput; None leaves that None.
        has_client_queue: tell the time that requests waited in the client, too.
    """
    done, seconds = run.completed, run.duration_s
    inputs = sum(record.num_prompt_tokens for record in done)
    outputs = sum(record.num_output_tokens for record in done)

    def per_second(count: float) -> float:
        return count / seconds if seconds > 0 else 0.0

    figures: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(run.records) - len(done),
        "total_input_tokens": inputs,
        "total_cached_tokens": sum(record.num_cached_tokens for record in done),
        "total_output_tokens": outputs,
        "request_throughput": per_second(len(done)),
        "request_goodput": None if slos is None else per_second(num_good(done, slos)),
        "output_throughput": per_second(outputs),
        "total_token_throughput": per_second(inputs + outputs),
        "max_output_tokens_per_s": max(tokens_per_second(done), default=0.0),
        "max_concurrent_requests": most_at_once(done),
        "rtfx": 0.0,  # of audio alone; readers of this format expect it
    }
    for name, values_s in metric_values(done, has_client_queue).items():
        figures |= statistics(name, values_s, percentiles)
    return figures


def metric_values(
    done: Sequence[RequestRecord], has_client_queue: bool = False
) -> dict[str, FloatArray]:
    """All values of each metric, in seconds."""
    values: dict[str, Iterable[float]] = {
        "ttft": (r.ttft_s for r in done if r.ttft_s is not None),
        "tpot": (tpot_s for r in done if (tpot_s := r.tpot_s) is not None),
        "itl": chain.from_iterable(r.itl_s for r in done),
        "e2el": (r.latency_s for r in done),
    }
    if has_client_queue:
        values["queue_time"] = (r.queue_s for r in done)
        values["e2el_including_client_queue"] = (r.queue_s + r.latency_s for r in done)
    return {name: np.fromiter(found, float) for name, found in values.items()}


def statistics(name: str, values_s: FloatArray, percentiles: Sequence[float]) -> dict[str, Any]:
    """mean_NAME_ms, median_NAME_ms, std_NAME_ms and pXX_NAME_ms."""
    ms = values_s * 1e3
    found: dict[str, float | None] = {
        f"mean_{name}_ms": float(ms.mean()) if ms.size else None,
        f"median_{name}_ms": float(np.median(ms)) if ms.size else None,
        f"std_{name}_ms": float(ms.std()) if ms.size else None,
    }
    for percent in percentiles:
        value = float(np.percentile(ms, percent)) if ms.size else None
        found[f"p{percent:g}_{name}_ms"] = value
    return found


def tokens_per_second(done: Sequence[RequestRecord]) -> FloatArray:
    """Output tokens of each second of the run."""
    times = np.concatenate([np.zeros(0), *(record.token_times_s for record in done)])
    return np.bincount(times.astype(int)).astype(float) if times.size else np.zeros(0)


def most_at_once(done: Sequence[RequestRecord]) -> int:
    """Most requests between sent and end at one moment."""
    changes = sorted([(r.sent_s, 1) for r in done] + [(r.end_s, -1) for r in done])
    return int(np.cumsum([change for _, change in changes]).max()) if changes else 0


def details(run: LoadRun) -> dict[str, Any]:
    """Lists with an entry for each request, in the order of the load; seconds."""
    records = run.records
    return {
        "input_lens": [r.num_prompt_tokens for r in records],
        "output_lens": [r.num_output_tokens for r in records],
        "cached_lens": [r.num_cached_tokens for r in records],
        "ttfts": [r.ttft_s for r in records],
        "itls": [list(r.itl_s) for r in records],
        "latencies": [r.latency_s for r in records],
        "start_times": [r.sent_s for r in records],
        "queue_times": [r.queue_s for r in records],
        "generated_texts": [r.text for r in records],
        "errors": [r.error or "" for r in records],
    }
