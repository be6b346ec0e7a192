"""The same task on several configurations, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runtime.config import RuntimeConfig
from runtime.errors import StepgraphError
from runtime.workbench.client import Clock, Watcher
from runtime.workbench.datasets import vocabulary_of
from runtime.workbench.records import LoadRun
from runtime.workbench.session import Bench, BenchRuntime
from runtime.workbench.tasks import Task


class _Spec(Protocol):
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


class ComparedRuntime(BenchRuntime, Protocol):
    """What is asked of a Runtime beside running loads."""

    @property
    def spec(self) -> _Spec: ...


OpenRuntime = Callable[[RuntimeConfig], AbstractContextManager[ComparedRuntime]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one configuration gave."""

    figures: Mapping[str, Any]
    """Of metrics.summarize and the engine's counts: medians over the repeats."""
    run: LoadRun
    """Of the last repeat."""


def compare(
    configs: Mapping[str, RuntimeConfig],
    task: Task,
    open_runtime: OpenRuntime,
    *,
    percentiles: Sequence[float],
    repeats: int = 1,
    watcher: Callable[[str], AbstractContextManager[Watcher | None]] = lambda name: nullcontext(),
    clock: Clock | None = None,
) -> dict[str, Measured]:
    """Run the task on each configuration, then on each again: what slows the machine for a while
    slows all of them. One runtime is open at a time.

    Args:
        watcher: makes the one that watches a run of the configuration of that name.

    Raises:
        StepgraphError: a request failed, so that the work was not the same.
    """
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}
    runs: dict[str, LoadRun] = {}
    for _ in range(repeats):
        for name, config in configs.items():
            with open_runtime(config) as runtime, watcher(name) as watching:
                bench = Bench(runtime, watcher=watching, clock=clock)
                spec = runtime.spec
                run = task.run(bench, vocabulary_of(spec.vocab_size, spec.eos_token_ids))
                counts = bench.engine_counts()
            _check(name, run)
            figures[name].append({**task.figures(run, percentiles), "engine": counts})
            runs[name] = run
    return {name: Measured(median_of(figures[name]), runs[name]) for name in configs}


def median_of(dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each number, also of those inside; what is no number is the first's."""
    found: dict[str, Any] = {}
    for key, first in dicts[0].items():
        values: list[Any] = [figures.get(key) for figures in dicts]
        if isinstance(first, Mapping):
            found[key] = median_of([value or {} for value in values])
        elif len(values) > 1 and all(type(value) in (int, float) for value in values):
            found[key] = float(np.median(values))
        else:
            found[key] = first
    return found


def ratios(
    ours: Mapping[str, Any], others: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """(name, other / ours) of each figure that both have."""
    for name in names:
        if ours.get(name) and others.get(name) is not None:
            yield name, others[name] / ours[name]


def _check(name: str, run: LoadRun) -> None:
    failed = [record for record in run.records if record.error is not None]
    if failed:
        raise StepgraphError(f"{name}: {len(failed)} requests failed; the first: {failed[0].error}")
