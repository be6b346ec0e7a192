"""The table at the end of a run."""

from __future__ import annotations

from rich.table import Table

from runtime.cli.drive import Ended
from runtime.cli.work import Job
from runtime.data.results import Delta
from runtime.observe.stats import RuntimeStats, percentile


class Tally:
    """Counts ends and collects times for the report."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}
        self.ttfts_s: list[float] = []
        self.itls_s: list[float] = []

    @property
    def has_errors(self) -> bool:
        return "error" in self.reasons

    def on_delta(self, job: Job, delta: Delta) -> None:
        """Nothing: times come with the result."""

    def on_end(self, ended: Ended) -> None:
        self.reasons[ended.finish_reason] = self.reasons.get(ended.finish_reason, 0) + 1
        for output in ended.result.outputs if ended.result else ():
            self.itls_s += output.timing.itl_s
            if output.timing.ttft_s is not None:
                self.ttfts_s.append(output.timing.ttft_s)


def report(stats: RuntimeStats, tally: Tally, seconds: float) -> Table:
    """What was run, how fast, and how well the steps and the cache were used.

    Args:
        seconds: from the first request to the last token, for tokens/s.
    """
    table = Table(title="Run", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    rate = stats.output_tokens / seconds if seconds > 0 else 0.0
    rows = {
        "requests": _requests(tally),
        "prompt tokens": f"{stats.prompt_tokens:,}",
        "cached tokens": _share(stats.cached_tokens, stats.prompt_tokens),
        "output tokens": f"{stats.output_tokens:,}",
        "steps": f"{stats.steps:,}",
        "mixed steps": _share(stats.mixed_steps, stats.steps),
        "tokens/s": f"{rate:,.1f}",
        "TTFT p50 / p99": _percentiles(tally.ttfts_s),
        "ITL p50 / p99": _percentiles(tally.itls_s),
        "KV blocks used": f"{stats.blocks_used_peak:,} of {stats.num_blocks:,}",
        "padding share": f"{stats.padding_share:.1%}",
    }
    if stats.preemptions:
        rows["preemptions"] = f"{stats.preemptions:,}"
    if stats.failed_steps:
        rows["failed steps"] = f"{stats.failed_steps:,}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _requests(tally: Tally) -> str:
    total = sum(tally.reasons.values())
    parts = [f"{count} {reason}" for reason, count in sorted(tally.reasons.items())]
    return f"{total:,} ({', '.join(parts)})"


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.0%})" if whole else f"{part:,}"


def _percentiles(values_s: list[float]) -> str:
    p50, p99 = percentile(values_s, 50), percentile(values_s, 99)
    if p50 is None or p99 is None:
        return "-"
    return f"{p50 * 1000:,.1f} / {p99 * 1000:,.1f} ms"
