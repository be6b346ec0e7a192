"""SchedulerStats: what the scheduler counts. Lengths are tokens unless the name says blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the scheduler was made; `Scheduler.stats` is the live object."""

    steps: int = 0
    mixed_steps: int = 0
    """Steps that held both a prefill chunk and a decode."""
    scheduled_tokens: int = 0
    steps_ahead: int = 0
    """Steps that were scheduled while another was in flight."""
    wait_reasons: Counter[str] = field(default_factory=Counter)
    """Steps that could not be, because they had to wait for the tokens of the one before."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    """Tokens that a preemption threw away and no prefix hit gave back."""

    prefix_query_tokens: int = 0
    """Known tokens of requests at their first admission, where the prefix cache was asked."""
    prefix_hit_tokens: int = 0
    preempted_query_tokens: int = 0
    """The same for requests that come back from a preemption, who mostly find their own blocks."""
    preempted_hit_tokens: int = 0

    num_blocks: int = 0
    """Usable blocks of the pool."""
    blocks_used: int = 0
    blocks_used_peak: int = 0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the asked tokens that were cached, first admissions only; 0 before any."""
        return self.prefix_hit_tokens / max(1, self.prefix_query_tokens)

    def note_step(self, num_tokens: int, is_mixed: bool) -> None:
        self.steps += 1
        self.mixed_steps += is_mixed
        self.scheduled_tokens += num_tokens

    def note_blocks(self, num_used: int) -> None:
        self.blocks_used = num_used
        self.blocks_used_peak = max(self.blocks_used_peak, num_used)
