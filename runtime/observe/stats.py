"""Counters of an engine, and the percentiles that reports quote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runtime.data.step import StepShape


@dataclass(slots=True)
class StepCounters:
    """Sums over steps, kept by the engine."""

    steps: int = 0
    failed_steps: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    """tokens run, padding included"""
    kinds: Counter[str] = field(default_factory=Counter)
    busy_s: float = 0.0

    def count(self, shape: StepShape) -> None:
        self.steps += 1
        self.tokens += shape.num_tokens
        self.padded_tokens += shape.num_tokens_padded
        self.kinds[shape.kind] += 1

    @property
    def padding_share(self) -> float:
        """Padding over all tokens run, 0 to 1."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


@dataclass(frozen=True, slots=True)
class GraphStats:
    """Which graphs ran, and what their capture cost."""

    decode_mode: str
    """of steps with one token a request; `auto` resolved"""
    mixed_mode: str
    """of every other step"""
    bucket_steps: dict[str, int]
    """steps by the bucket that served them"""
    eager_reasons: dict[str, int]
    """steps that ran without a graph although a mode has graphs, by reason"""
    captured: dict[str, Any]
    """seconds, memory_bytes, kv_blocks that would fit into these, and the same of each bucket"""


@dataclass(frozen=True, slots=True)
class RuntimeStats:
    """A snapshot of everything that a Runtime counted since it was made."""

    num_requests: int
    """accepted"""
    num_running: int
    num_waiting: int
    num_finished: int
    prompt_tokens: int
    cached_tokens: int
    """prompt tokens served by the prefix cache"""
    output_tokens: int
    steps: int
    mixed_steps: int
    """steps with both a prompt chunk and a decode"""
    failed_steps: int
    steps_ahead: int
    """steps that were scheduled and launched while another one ran"""
    wait_reasons: dict[str, int]
    """why others could not be"""
    scheduled_tokens: int
    padded_tokens: int
    padding_share: float
    step_kinds: dict[str, int]
    graphs: GraphStats
    preemptions: int
    recomputed_tokens: int
    block_size: int
    num_blocks: int
    blocks_used: int
    blocks_used_peak: int
    elapsed_s: float
    """time inside steps"""


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The percentile with linear interpolation; None of nothing."""
    array = np.fromiter(values, float)
    return float(np.percentile(array, percent)) if array.size else None
