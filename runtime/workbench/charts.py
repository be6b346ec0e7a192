"""Charts of a run, by matplotlib, which is imported only when one is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from runtime.errors import ConfigError
from runtime.workbench.metrics import METRICS, metric_values, tokens_per_second
from runtime.workbench.output_file import OutputFile
from runtime.workbench.records import LoadRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERCENTS = (50, 75, 90, 95, 99)
TYPES = (".svg", ".png", ".pdf")


def check_charts(path: str, flag: str) -> OutputFile:
    """The file of a chart, while nothing has run yet.

    Raises:
        ConfigError: a type that no chart has, a path that cannot be written, no matplotlib.
    """
    if os.path.splitext(path)[1].lower() not in TYPES:
        raise ConfigError(f"{flag} {path}: must end in one of {', '.join(TYPES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{flag}: charts need matplotlib ({error}); try: pip install 'stepgraph[charts]'"
        ) from None
    return OutputFile(path, flag)


def draw(file: OutputFile, runs: Mapping[str, LoadRun], title: str) -> None:
    """Write latency percentiles, throughput over time and ITLs of one run, or of some beside each
    other.

    Args:
        runs: by the names that the legend gives them.

    Raises:
        OSError: the file cannot be written.
    """
    save(file, figure_of(runs, title), title)


def save(file: OutputFile, figure: Figure, title: str) -> None:
    """Write a figure; equal figures of equal titles are equal files.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": title}):  # else ids are drawn
        file.write(lambda path: figure.savefig(path, metadata=_without_date(path)))


def figure_of(runs: Mapping[str, LoadRun], title: str) -> Figure:
    """What `draw` writes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 4.6), layout="constrained")
    figure.suptitle(title)
    latency, over_time, itls = figure.subplots(1, 3, width_ratios=(3, 2, 2))
    _draw_latencies(latency, runs)
    _draw_throughput(over_time, runs)
    _draw_itls(itls, runs)
    if len(runs) > 1:
        figure.legend(*itls.get_legend_handles_labels(), loc="outside upper right")
    return figure


def _draw_latencies(axes: Axes, runs: Mapping[str, LoadRun]) -> None:
    """A group of bars for each percentile of each metric, a bar for each run."""
    axes.set(title="latency percentiles", ylabel="ms")
    width = 0.8 / max(1, len(runs))
    ticks = [f"{name.upper()}\np{percent}" for name in METRICS for percent in PERCENTS]
    for number, (name, run) in enumerate(runs.items()):
        heights = []
        for values in metric_values(run.completed).values():
            heights += list(np.percentile(values * 1e3, PERCENTS)) if values.size else [0.0] * 5
        places = np.arange(len(ticks)) + (number - (len(runs) - 1) / 2) * width
        axes.bar(places, heights, width, label=name)
    axes.set_xticks(range(len(ticks)), ticks, fontsize=6)
    if any(run.completed for run in runs.values()):
        axes.set_yscale("log")
    axes.grid(axis="y", alpha=0.3)


def _draw_throughput(axes: Axes, runs: Mapping[str, LoadRun]) -> None:
    axes.set(title="output tokens of each second", xlabel="s", ylabel="tokens/s")
    for name, run in runs.items():
        rates = tokens_per_second(run.completed)
        axes.stairs(rates, label=name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _draw_itls(axes: Axes, runs: Mapping[str, LoadRun]) -> None:
    axes.set(title="inter-token latencies", xlabel="ms", ylabel="gaps")
    of_runs = {name: metric_values(run.completed)["itl"] * 1e3 for name, run in runs.items()}
    every = np.concatenate([np.zeros(0), *of_runs.values()])
    every = every[every > 0]
    if every.size:
        axes.set(xscale="log", yscale="log")
        bins = np.geomspace(every.min(), max(every.max(), every.min() * 1.01), 60)
        for name, values in of_runs.items():
            axes.hist(values, list(bins), histtype="step", label=name)
    axes.grid(alpha=0.3)


def _without_date(path: str) -> dict[str, None]:
    date = {".svg": "Date", ".pdf": "CreationDate"}.get(os.path.splitext(path)[1].lower())
    return {date: None} if date else {}
