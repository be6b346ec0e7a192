"""Steps by hand, as a scheduler would give them to a runner, and running them eagerly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from graphs import GraphKey, Kind
from runtime.data.step import NewRow, SchedulerOutput
from runtime.runner import ModelRunner


class Part(NamedTuple):
    """A request's share of a step."""

    num_computed: int
    num_scheduled: int
    samples: bool = True


def step_of(
    rows: Sequence[int],
    parts: Sequence[Part],
    *,
    new: Sequence[NewRow] = (),
    freed: Sequence[int] = (),
) -> SchedulerOutput:
    """One step over rows that are known or new."""
    return SchedulerOutput(
        step_id=0,
        rows=np.array(rows, np.int32),
        num_computed_tokens=np.array([p.num_computed for p in parts], np.int32),
        num_scheduled_tokens=np.array([p.num_scheduled for p in parts], np.int32),
        samples=np.array([p.samples for p in parts], bool),
        freed_rows=tuple(freed),
        new_rows=tuple(new),
        new_block_ids=(),
    )


@contextmanager
def run_eagerly(runner: ModelRunner) -> Iterator[None]:
    """Steps of exact sizes, whatever was captured."""

    def dispatch(
        num_tokens: int, num_reqs: int, max_query_len: int, max_seq_len: int = 0
    ) -> GraphKey:
        return GraphKey(Kind.EAGER, num_tokens, num_reqs)

    runner.graphs.dispatch = dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        del runner.graphs.dispatch
