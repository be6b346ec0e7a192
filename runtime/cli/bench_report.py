"""What `bench` found: the table, and the fields of the result file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from runtime import __version__
from runtime.workbench.records import LoadRun

if TYPE_CHECKING:
    from runtime.config import RunConfig

_ROWS = (
    ("avg_latency", "batch latency, s", ".3f"),
    ("completed", "requests completed", ",d"),
    ("failed", "requests failed", ",d"),
    ("duration", "duration, s", ",.2f"),
    ("total_input_tokens", "input tokens", ",d"),
    ("total_cached_tokens", "of these cached", ",d"),
    ("total_output_tokens", "output tokens", ",d"),
    ("request_throughput", "requests/s", ",.3f"),
    ("request_goodput", "good requests/s", ",.3f"),
    ("output_throughput", "output tokens/s", ",.1f"),
    ("total_token_throughput", "tokens/s", ",.1f"),
    ("max_output_tokens_per_s", "most output tokens in a second", ",.0f"),
    ("max_concurrent_requests", "most requests at once", ",d"),
)
_METRICS = (
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("itl", "ITL"),
    ("e2el", "E2EL"),
    ("queue_time", "client queue"),
    ("e2el_including_client_queue", "E2EL + queue"),
)


def tables(
    title: str, figures: Mapping[str, Any], percentiles: Sequence[float]
) -> tuple[Table, Table]:
    """Counts and rates; then a row for each metric in milliseconds."""
    totals = Table(title=title, title_justify="left", show_header=False)
    for key, words, form in _ROWS:
        if figures.get(key) is not None:
            totals.add_row(words, format(figures[key], form))
    columns = ["mean", "median", "std", *(f"p{percent:g}" for percent in percentiles)]
    times = Table("ms")
    for column in columns:
        times.add_column(column, justify="right", no_wrap=True)
    for name, words in _METRICS:
        if f"mean_{name}_ms" in figures:
            values = [figures[f"{column}_{name}_ms"] for column in columns]
            times.add_row(words, *map(in_digits, values))
    return totals, times


def in_digits(value: float | None) -> str:
    """Three digits at least, in no more room than they need."""
    if value is None:
        return "-"
    decimals = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{decimals}f}"


def heading(
    kind: str, label: str, config: RunConfig, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields that say what was measured, and of what."""
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "benchmark": kind,
        "backend": "stepgraph",
        "version": __version__,
        "label": label,
        "model_id": config.model.path,
        "tokenizer_id": config.model.tokenizer or config.model.path,
        **settings,
        "config": config.model_dump(mode="json", exclude={"requests"}),
    }


def failures(run: LoadRun) -> str:
    """How many requests failed, and why the first did; "" where none did."""
    errors = [record for record in run.records if record.error is not None]
    if not errors:
        return ""
    count = (
        "every request" if not run.completed else f"{len(errors)} of {len(run.records)} requests"
    )
    return f"{count} failed; the first, request {errors[0].index} (from 0): {errors[0].error}"
