"""A request while it runs, as its user sees it: text, times, log-probabilities of each sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from runtime.data.params import SamplingParams
from runtime.data.request import FinishReason, Request
from runtime.data.results import Completion, Delta, Result, Timing
from runtime.data.step import Logprobs, RequestOutput
from runtime.text import TextStream


@dataclass(slots=True)
class LiveSample:
    """One sample: the engine's request, and what came out of it so far."""

    request: Request
    stream: TextStream | None
    """None where the model has no tokenizer: such a runtime speaks token ids only."""

    token_times_s: list[float] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    """Why its text could not be made; the engine's own errors are in the request."""
    finished_s: float = 0.0

    def advance(self, output: RequestOutput, now_s: float) -> tuple[str, str | None]:
        """Take one output of the engine.

        Returns:
            The new text, and the stop string that it completed; the caller then ends the request.
        """
        text, stop_string = "", None
        if output.token_id is not None:
            self.token_times_s.append(now_s)
            if output.logprobs is not None:
                self.logprobs.append(output.logprobs)
            if self.stream is not None:
                text, stop_string = self.stream.push(
                    output.token_id, is_stop=output.finish_reason is FinishReason.STOP
                )
        if stop_string is not None:
            stop_id = output.request.stop_reason  # of a stop token whose text completed the string
            self._end(FinishReason.STOP, stop_string if stop_id is None else stop_id, now_s)
        elif output.finish_reason is not None:
            self._end(output.finish_reason, output.request.stop_reason, now_s)
            if self.stream is not None:
                text += self.stream.finish()
        return text, stop_string

    def fail(self, error: str, now_s: float) -> None:
        self.error = error
        self._end(FinishReason.ERROR, None, now_s)

    def completion(self, index: int) -> Completion:
        assert self.finish_reason is not None
        request, times = self.request, self.token_times_s
        arrival_s, scheduled_s = request.arrival_s, request.first_scheduled_s
        timing = Timing(
            queue_s=None if scheduled_s is None else scheduled_s - arrival_s,
            ttft_s=times[0] - arrival_s if times else None,
            e2e_s=self.finished_s - arrival_s,
            itl_s=tuple(b - a for a, b in pairwise(times)),
        )
        return Completion(
            index=index,
            text=self.stream.text if self.stream is not None else "",
            token_ids=tuple(request.output_token_ids),
            finish_reason=self.finish_reason.value,
            stop_reason=self.stop_reason,
            error=self.error or request.error,
            logprobs=tuple(self.logprobs) if request.params.logprobs is not None else None,
            num_preemptions=request.num_preemptions,
            timing=timing,
        )

    def _end(self, reason: FinishReason, stop_reason: int | str | None, now_s: float) -> None:
        self.finish_reason, self.stop_reason, self.finished_s = reason, stop_reason, now_s


@dataclass(slots=True)
class LiveRequest:
    """A user's request: `params.n` samples under one id."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    samples: list[LiveSample]
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    num_unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_unfinished = len(self.samples)

    def advance(self, index: int, output: RequestOutput, now_s: float) -> Delta:
        """Take one output of the engine for sample `index`; after a stop string the sample has
        ended here, and its request is still to be ended in the engine."""
        sample = self.samples[index]
        if index == 0 and output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs
        text, _ = sample.advance(output, now_s)
        return self._delta(index, output, text)

    def fail(self, index: int, error: str, now_s: float) -> Delta:
        """End a sample whose text cannot be made."""
        self.samples[index].fail(error, now_s)
        return self._delta(index, RequestOutput(self.samples[index].request, None), "")

    def _delta(self, index: int, output: RequestOutput, text: str) -> Delta:
        sample = self.samples[index]
        self.num_unfinished -= sample.finish_reason is not None
        return Delta(
            request_id=self.request_id,
            index=index,
            text=text,
            token_ids=() if output.token_id is None else (output.token_id,),
            logprobs=None if output.logprobs is None else (output.logprobs,),
            finish_reason=None if sample.finish_reason is None else sample.finish_reason.value,
            finished=None if self.num_unfinished else self._result(),
        )

    def _result(self) -> Result:
        wanted = self.params.prompt_logprobs is not None
        return Result(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_token_ids),
            num_cached_tokens=self.samples[0].request.num_cached_tokens,
            prompt_logprobs=(None, *self.prompt_logprobs) if wanted else None,
            outputs=tuple(s.completion(i) for i, s in enumerate(self.samples)),
        )
