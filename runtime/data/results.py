"""What a user gets back: deltas while a request runs, a Result when it ended.

Plain data, no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.data.step import Logprobs


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one sample; None where the event never came."""

    queue_s: float | None
    """Arrival to first scheduled."""

    ttft_s: float | None
    """Arrival to first token."""

    e2e_s: float
    """Arrival to the end."""

    itl_s: tuple[float, ...]
    """Each gap between two tokens."""

    @property
    def tpot_s(self) -> float | None:
        """(e2e - ttft) / (tokens - 1); None under two tokens."""
        return sum(self.itl_s) / len(self.itl_s) if self.itl_s else None


@dataclass(frozen=True, slots=True)
class Completion:
    """One sample of a request (`SamplingParams.n` of them)."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    """Every generated token, the one that stopped it included."""
    finish_reason: str
    """Stop, length, abort or error."""

    stop_reason: int | str | None
    """The stop token id or stop string; None for EOS and for every other end."""

    error: str | None
    logprobs: tuple[Logprobs, ...] | None
    num_preemptions: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request.

    The properties are those of the first sample.
    """

    request_id: str
    prompt: str | None
    """The prompt's text, the chat rendered; None for token ids."""

    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens that the prefix cache served; further samples share the first one's blocks."""

    prompt_logprobs: tuple[Logprobs | None, ...] | None
    outputs: tuple[Completion, ...]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Over all samples."""
        return sum(len(o.token_ids) for o in self.outputs)

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def error(self) -> str | None:
        return next((o.error for o in self.outputs if o.error), None)

    @property
    def logprobs(self) -> tuple[Logprobs, ...] | None:
        return self.outputs[0].logprobs

    @property
    def num_preemptions(self) -> int:
        return sum(o.num_preemptions for o in self.outputs)

    @property
    def timing(self) -> Timing:
        return self.outputs[0].timing


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one sample."""

    request_id: str
    index: int
    """Of the sample."""

    text: str
    """New text; may be empty while a character or a stop string is incomplete."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] | None
    finish_reason: str | None
    finished: Result | None
    """Set in the last delta of the request, when all its samples ended."""
