"""The fake model run ahead: steps are launched in order, and come back later, in order.

The device has a token as soon as its step was launched, the host only when the step comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from runtime.data.step import RequestOutput, RunnerOutput, SchedulerOutput

from .fake import VOCAB, Bench, FakeRunner, Row


@dataclass
class Launched:
    so: SchedulerOutput
    ro: RunnerOutput
    rows: list[Row | None]
    """of the step's samples; None where it was fed a wrong token"""
    positions: list[int]
    """of the sampled tokens"""
    slots: list[int]
    """that the step wrote"""


@dataclass
class LaunchRunner(FakeRunner):
    known: dict[int, int] = field(default_factory=dict)
    """row -> tokens that the host knows"""

    def launch(self, so: SchedulerOutput, late: Iterable[int] = ()) -> Launched:
        """Run a step now.

        Args:
            late: indexes into its samples of tokens that later steps are fed wrong.
        """
        ro = replace(self.execute(so), late=tuple(late))
        ends = so.num_computed_tokens + so.num_scheduled_tokens
        unknown = [
            int(end) > self.known[row]
            for row, end in zip(so.rows.tolist(), ends.tolist(), strict=True)
        ]
        assert (so.feeds is not None) == any(unknown), "feeds"
        if so.feeds is not None:
            assert so.feeds.tolist() == unknown, "feeds"
            assert (so.num_scheduled_tokens[so.feeds] == 1).all(), "one token is fed"
        rows: list[Row | None] = [self.rows[row] for row in so.rows[so.samples].tolist()]
        for index in ro.late:
            rows[index].tokens[-1] = (rows[index].tokens[-1] + 1) % VOCAB
        slots = [
            self.slot(self.rows[row], position)
            for row, end, count in zip(
                so.rows.tolist(), ends.tolist(), so.num_scheduled_tokens.tolist(), strict=True
            )
            for position in range(end - count, end)
        ]
        return Launched(so, ro, rows, ends[so.samples].tolist(), slots)

    def collect(self, launched: Launched, later: Iterable[Launched]) -> RunnerOutput:
        row_ids = launched.so.rows[launched.so.samples].tolist()
        for index, (row_id, row) in enumerate(zip(row_ids, launched.rows, strict=True)):
            if row is None or self.rows.get(row_id) is not row:
                continue
            self.known[row_id] = launched.positions[index] + 1
            if index in launched.ro.late:
                row.tokens[launched.positions[index] :] = [int(launched.ro.token_ids[index])]
                for other in later:
                    other.rows = [None if r is row else r for r in other.rows]
        return launched.ro

    def apply(self, so: SchedulerOutput) -> None:
        super().apply(so)
        for new in so.new_rows:
            self.known[new.row] = len(new.token_ids)


@dataclass
class AheadBench(Bench):
    """Keeps a step in flight."""

    flights: deque[Launched] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.runner = LaunchRunner(self.scheduler.pool.block_size)

    def launch(self, late: Iterable[int] = ()) -> SchedulerOutput:
        so = self.schedule()
        if so.num_reqs:
            self.flights.append(self.runner.launch(so, late))
        return so

    def collect(self, errors: dict[int, str] | None = None) -> list[RequestOutput]:
        launched = self.flights.popleft()
        ro = replace(
            self.runner.collect(launched, self.flights),
            errors=errors or {},
            bad_kv=tuple(errors or ()),
        )
        return self.note(self.scheduler.update_from_output(launched.so, ro))

    def fail_all(self) -> list[RequestOutput]:
        """The oldest step in flight fails, and with it those behind it: nonsense is all that they
        leave where they write."""
        outputs = []
        for launched in self.flights:
            for slot in launched.slots:
                self.runner.first[slot], self.runner.second[slot] = (-1, -1), -1
            outputs += self.scheduler.fail_step(launched.so, "lost")
        self.flights.clear()
        return self.note(outputs)

    def step(self) -> list[RequestOutput]:
        so = self.launch()
        if len(self.flights) > bool(so.num_reqs):
            return self.collect()
        return []

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished():
                return
            before = len(self.steps), len(self.flights)
            self.step()
            assert before != (len(self.steps), len(self.flights)), "work waits and nothing runs"
        raise AssertionError(f"not done after {max_steps} steps")
