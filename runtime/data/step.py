"""The data of one step: the only place where scheduler and runner meet.

Plain ints and numpy, no tensors.

Shapes: B scheduled requests of the step, S of them that sample a token. A *row* is a place in [0,
max_num_seqs) that the scheduler gives a request while it runs; the runner keeps its state of the
request at the same row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.data.params import SamplingParams
from runtime.data.request import FinishReason, Request

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that enters a row (first time, or again after a preemption): whole, nothing is
    assumed known."""

    row: int
    request_id: str
    token_ids: list[int]
    """Every known token: the prompt, then what was generated before a preemption.

    A copy: it does
    not grow.
    """

    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    """A copy, with the blocks of this step included."""

    params: SamplingParams
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What to run in this step.

    `rows` is in running order; all arrays are fresh copies, safe to keep or send.
    """

    step_id: int
    rows: IntArray
    """[B]"""
    num_scheduled_tokens: IntArray
    """[B], each >= 1."""
    num_computed_tokens: IntArray
    """[B], before this step."""

    samples: BoolArray
    """[B], True where the request's known tokens end in this step, so that its logits are
    needed."""

    freed_rows: tuple[int, ...]
    """Rows left since the last step (finished, aborted, preempted): dropped before new_rows are
    added. After a failed step some are reported again: dropping an empty row does nothing."""

    new_rows: tuple[NewRow, ...]
    new_block_ids: tuple[tuple[int, list[int]], ...]
    """(row, block ids to append) of rows that were known before this step."""

    blocks_to_clear: tuple[int, ...] = ()
    """Blocks whose last holder left non-finite K/V: zeroed before this step writes to any."""

    feeds: BoolArray | None = None
    """[B], True where a request's one token is still being sampled by the step before, so that the
    runner takes it from the device; None where there is none."""

    @property
    def num_reqs(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return int(self.num_scheduled_tokens.sum())


class StepShape(NamedTuple):
    """How the runner ran a step: real and padded sizes, and the graph kind with the reason where it
    was eager."""

    num_tokens: int
    num_tokens_padded: int
    num_reqs: int
    num_reqs_padded: int
    kind: str
    """Eager, decode, segmented or ragged."""

    eager_reason: str = ""


class TokenLogprob(NamedTuple):
    token_id: int
    logprob: float
    rank: int
    """1 is the most likely token."""


Logprobs = list[TokenLogprob]
"""Of one position: the sampled (or given) token first, then the top ones by rank."""


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What a step produced."""

    token_ids: IntArray
    """[S], in the order of the rows whose `samples` is True."""

    shape: StepShape
    errors: dict[int, str] = field(default_factory=dict)
    """Index into S -> why that request must end (non-finite logits, a processor that raised)"""

    logprobs: list[Logprobs | None] | None = None
    """[S], or None where no request of the step asked."""

    prompt_logprobs: dict[int, list[Logprobs]] = field(default_factory=dict)
    """Row -> log-probabilities of the prompt tokens whose predecessors were run in this step, in
    order."""

    bad_kv: tuple[int, ...] = ()
    """Those indexes of `errors` whose logits were not finite, so that their K/V cannot be trusted
    either."""

    late: tuple[int, ...] = ()
    """Indexes into S of tokens that were settled on the host, so that a step that was launched
    meanwhile was fed another one: that row of it is void."""


class RequestOutput(NamedTuple):
    """What one step changed for one request."""

    request: Request
    token_id: int | None
    """The new token; None when the request ended without one (abort, error)."""

    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[Logprobs] | None = None
