"""Runs loads on one Runtime, after a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from runtime.config import RequestConfig
from runtime.observe.stats import RuntimeStats
from runtime.workbench.client import Clock, LoadRuntime, Watcher, run_load
from runtime.workbench.records import LoadRun

COUNTED = (
    *("steps", "mixed_steps", "failed_steps", "steps_ahead"),
    *("scheduled_tokens", "padded_tokens", "preemptions", "recomputed_tokens"),
)
"""Counters of RuntimeStats that a run adds to."""


class BenchRuntime(LoadRuntime, Protocol):
    """What is asked of a Runtime beside running requests."""

    def reset_prefix_cache(self) -> bool: ...
    def stats(self) -> RuntimeStats: ...


class Bench:
    """Runs loads on one runtime, none of which finds another's prefixes in the cache.

    Args:
        is_stopped: asked between steps; True breaks off what runs, and the rest is not begun.
    """

    def __init__(
        self,
        runtime: BenchRuntime,
        *,
        watcher: Watcher | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._runtime, self._watcher, self._is_stopped = runtime, watcher, is_stopped
        self._clock = clock or Clock()
        self._before = runtime.stats()

    def warm_up(self, requests: Sequence[RequestConfig]) -> None:
        """Run requests all at once; what follows counts from here. Those that fail do so
        silently: they say nothing about the load."""
        self._run(requests, [0.0] * len(requests), None, None)
        self._before = self._runtime.stats()

    def run(
        self,
        requests: Sequence[RequestConfig],
        due_s: Sequence[float],
        max_concurrency: int | None = None,
    ) -> LoadRun:
        """Run one load; see run_load."""
        return self._run(requests, due_s, max_concurrency, self._watcher)

    def engine_counts(self) -> dict[str, Any]:
        """What the engine counted since the warm-up."""
        now = self._runtime.stats()
        counts = {name: getattr(now, name) - getattr(self._before, name) for name in COUNTED}
        return {**counts, "blocks_used_peak": now.blocks_used_peak, "num_blocks": now.num_blocks}

    def _run(
        self,
        requests: Sequence[RequestConfig],
        due_s: Sequence[float],
        max_concurrency: int | None,
        watcher: Watcher | None,
    ) -> LoadRun:
        self._runtime.reset_prefix_cache()
        return run_load(
            self._runtime,
            requests,
            due_s,
            max_concurrency=max_concurrency,
            watcher=watcher,
            is_stopped=self._is_stopped,
            clock=self._clock,
        )
