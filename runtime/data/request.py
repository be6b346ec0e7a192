"""Request: one sequence of tokens and its progress.

No tensors, no text.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.data.params import SamplingParams


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(str, enum.Enum):
    """Why a request ended; the values are those of OpenAI's API, plus abort and error."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ExtraKey(NamedTuple):
    """Something beside the tokens that changes K/V: an adapter, an image, who may share."""

    name: str
    value: str
    start: int = 0
    """the first position whose K/V it changes; those before are shared all the same"""


@dataclass(slots=True, eq=False)
class Request:
    """One request as scheduler and engine see it.

    `token_ids` holds the prompt and then every generated token; it only grows. The scheduler owns
    the progress fields; while a request runs, the scheduler's row arrays are ahead of them and they
    are brought up to date when it leaves its row (preempted, finished).
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    """Lower runs first under `scheduler.order: priority`; ties by arrival."""

    cache_salt: str | None = None
    """Prefix blocks are shared only between requests with an equal salt."""

    sample_group: str | None = None
    """Requests of an equal group are samples of one prompt: they share its blocks even where the
    prefix cache is off."""

    extra_keys: tuple[ExtraKey, ...] = ()
    """What else changes its K/V: prefix blocks are shared only where these are equal too."""

    arrival_s: float = field(default_factory=time.perf_counter)

    # progress, owned by the scheduler
    token_ids: list[int] = field(init=False)
    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    row: int = field(default=-1, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    """Prompt tokens that came from a prefix hit at the first admission (a metric)."""

    num_preemptions: int = field(default=0, init=False)
    block_ids: list[int] = field(default_factory=list, init=False)
    block_keys: list[bytes] = field(default_factory=list, init=False)
    """Keys of the full blocks of token_ids, computed once, as far as they were needed."""

    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)
    """The stop token id or stop string that ended it; None for EOS, length, abort, error."""

    error: str | None = field(default=None, init=False)

    # times, seconds on time.perf_counter's clock
    first_scheduled_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED
