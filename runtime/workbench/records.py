"""What one run of a load gave: a record for each request. Times in seconds from the run's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from runtime.data.results import Result

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """How one request fared."""

    index: int
    """Of the load, from 0."""
    due_s: float
    """When it came."""
    sent_s: float
    """When it was given to the engine; later than due where the client held it back. What the
    engine makes of it counts from here."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    ttft_s: float | None = None
    """Sent to first token; None where there was none."""
    itl_s: tuple[float, ...] = ()
    """Each gap between two tokens."""
    latency_s: float = 0.0
    """Sent to the end."""
    text: str = ""
    error: str | None = None
    """Why it failed; such a request has no part in the percentiles."""

    @property
    def queue_s(self) -> float:
        """How long the client held it back."""
        return self.sent_s - self.due_s

    @property
    def end_s(self) -> float:
        return self.sent_s + self.latency_s

    @property
    def tpot_s(self) -> float | None:
        """(latency - ttft) / (output tokens - 1); None under two tokens."""
        if self.ttft_s is None or self.num_output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.num_output_tokens - 1)

    @property
    def token_times_s(self) -> FloatArray:
        """When each output token came."""
        if self.ttft_s is None:
            return np.zeros(0)
        return self.sent_s + self.ttft_s + np.concatenate([[0.0], np.cumsum(self.itl_s)])


def record_of(index: int, due_s: float, sent_s: float, result: Result) -> RequestRecord:
    """Of a request that the engine has ended."""
    timing = result.timing
    return RequestRecord(
        index=index,
        due_s=due_s,
        sent_s=sent_s,
        num_prompt_tokens=result.num_prompt_tokens,
        num_cached_tokens=result.num_cached_tokens,
        num_output_tokens=result.num_output_tokens,
        ttft_s=timing.ttft_s,
        itl_s=timing.itl_s,
        latency_s=timing.e2e_s,
        text=result.text,
        error=result.error,
    )


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A load that was run."""

    records: tuple[RequestRecord, ...]
    """In the order of the load."""
    duration_s: float
    is_whole: bool = True
    """False: it was broken off, and what had not ended has no record."""

    @property
    def completed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error is None]


def joined(runs: Sequence[LoadRun]) -> LoadRun:
    """Runs one after the other as one."""
    records: list[RequestRecord] = []
    start_s = 0.0
    for run in runs:
        first = len(records)
        records += [
            replace(
                record,
                index=first + record.index,
                due_s=start_s + record.due_s,
                sent_s=start_s + record.sent_s,
            )
            for record in run.records
        ]
        start_s += run.duration_s
    return LoadRun(tuple(records), start_s, all(run.is_whole for run in runs))
