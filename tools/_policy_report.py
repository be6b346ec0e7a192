"""Policies side by side: the table, the ratios to the reference, and the result file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from runtime.config import RunConfig
from runtime.workbench.comparison import Measured, ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOADS = ("rate", "all_at_once")
PERCENTILES = (50, 90, 95, 99)
SHOWN = ("output_throughput", *(f"p{p}_{m}_ms" for m in ("ttft", "tpot", "itl") for p in (50, 99)))
REFERENCE = {
    "rate": {"p99_ttft_ms": 1189 / 536, "p99_tpot_ms": 63.5 / 49.6, "p99_itl_ms": 337 / 62.6},
    "all_at_once": {"output_throughput": 448 / 478},
}
"""prefill_first / mixed of Qwen3-8B on an RTX 4090 at 2 requests/s, and all at once; eager."""


def table(
    load: str, title: str, configs: Mapping[str, RunConfig], found: Mapping[str, Measured]
) -> Table:
    """A row for each policy, then how many times mixed's figure prefill_first's is."""
    rows = Table(title=f"{title}; latencies in ms", title_justify="left")
    for heading in ("policy", "budget", "tokens/s", *map(_words, SHOWN[1:])):
        rows.add_column(heading, justify="right", no_wrap=True)
    for name, of in found.items():
        budget = configs[name].scheduler.max_num_batched_tokens
        values = [of.figures[column] for column in SHOWN]
        cells = ["-" if value is None else f"{value:,.1f}" for value in values]
        rows.add_row(name, f"{budget:,}", *cells)
    rows.add_section()
    for heading, by_name in (("ratio", ratio_of(found)), ("reference", REFERENCE[load])):
        cells = [f"{by_name[column]:.2f}" if column in by_name else "" for column in SHOWN]
        rows.add_row(heading, "", *cells)
    return rows


def curve(configs: Mapping[str, RunConfig], found: Mapping[str, Mapping[str, Measured]]) -> Figure:
    """What each token budget of mixed buys, with prefill_first as a dashed line."""
    from matplotlib.figure import Figure

    columns = ("output_throughput", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms")
    budgets = {name: c.scheduler.max_num_batched_tokens for name, c in configs.items()}
    mixed = sorted((name for name in budgets if name != "prefill_first"), key=budgets.__getitem__)
    figure = Figure(figsize=(16, 4), layout="constrained")
    for axes, column in zip(figure.subplots(1, len(columns)), columns, strict=True):
        axes.set(title=column.replace("_", " "), xlabel="token budget of a step", xscale="log")
        for number, load in enumerate(LOADS):
            values = {name: of.figures[column] for name, of in found[load].items()}
            axes.plot(
                [budgets[name] for name in mixed],
                [values[name] for name in mixed],
                "o-",
                color=f"C{number}",
                label=f"mixed, {load}",
            )
            axes.axhline(
                values["prefill_first"],
                color=f"C{number}",
                linestyle="--",
                label=f"prefill_first, {load}",
            )
        axes.set_ylim(bottom=0)
        axes.set_xticks([budgets[name] for name in mixed], [f"{budgets[n]:,}" for n in mixed])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _words(name: str) -> str:
    """`p99_itl_ms` as a heading."""
    percent, metric, _ = name.split("_")
    return f"{metric.upper()} {percent}"


def ratio_of(found: Mapping[str, Measured]) -> dict[str, float]:
    """prefill_first / mixed."""
    return dict(ratios(found["mixed"].figures, found["prefill_first"].figures, SHOWN))


def shortfalls(found: Mapping[str, Mapping[str, Measured]]) -> list[str]:
    """Ratios that are worse than the reference's, in words: latencies below, throughput above."""
    lines = []
    for load, wanted in REFERENCE.items():
        ours = ratio_of(found[load])
        for name, ratio in wanted.items():
            is_rate = name == "output_throughput"
            if name in ours and (ours[name] > ratio if is_rate else ours[name] < ratio):
                lines.append(f"{load}: {name}: {ours[name]:.2f}, the reference has {ratio:.2f}")
    return lines


def as_dict(
    about: Mapping[str, Any],
    configs: Mapping[str, RunConfig],
    found: Mapping[str, Mapping[str, Measured]],
) -> dict[str, Any]:
    """What --json writes: the figures of each policy under each load, the ratios, the settings."""
    loads = {
        load: {
            name: {
                "max_num_batched_tokens": configs[name].scheduler.max_num_batched_tokens,
                **of.figures,
            }
            for name, of in by_name.items()
        }
        for load, by_name in found.items()
    }
    shares = {load: ratio_of(by_name) for load, by_name in found.items()}
    config = configs["mixed"].model_dump(mode="json", exclude={"requests"})
    return {**loads, "prefill_first_over_mixed": shares, "about": {**about, "config": config}}
