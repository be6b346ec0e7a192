"""What a user should know beside the answers: lines on standard error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runtime.cli.drive import Ended
from runtime.cli.work import Job
from runtime.data.params import GREEDY_BELOW
from runtime.data.results import Delta

if TYPE_CHECKING:
    from runtime.front.api import Runtime


class RawPromptHint:
    """Notes that raw prompts got empty answers of a model that expects a chat."""

    def __init__(self, runtime: Runtime) -> None:
        tokenizer = runtime.tokenizer
        self._expects_chat = tokenizer is not None and tokenizer.has_chat_template
        self._num_empty = 0

    def on_delta(self, job: Job, delta: Delta) -> None:
        """Nothing: what counts is the end."""

    def on_end(self, ended: Ended) -> None:
        result, request = ended.result, ended.job.request
        if result is None or request is None or request.prompt is None:
            return
        at_once = ended.finish_reason == "stop" and len(result.token_ids) <= 1
        self._num_empty += at_once and not result.text

    def lines(self) -> list[str]:
        """The hint, where there is one to give."""
        if not (self._expects_chat and self._num_empty):
            return []
        count = "an answer is" if self._num_empty == 1 else f"{self._num_empty} answers are"
        return [
            f"hint: {count} empty, since the model ended at once: it expects a chat; give the "
            'text with --chat, or as "chat" in the input'
        ]


class FailureLines:
    """For runs that print no answers: each error, or where the errors are.

    Args:
        output: the output file; None where there is none.
    """

    def __init__(self, write: Callable[[str], None], output: str | None) -> None:
        self._write, self._output = write, output
        self._num_failed = 0

    def on_delta(self, job: Job, delta: Delta) -> None:
        """Nothing: what counts is the end."""

    def on_end(self, ended: Ended) -> None:
        if ended.error is None:
            return
        self._num_failed += 1
        if self._output is None:
            where = "" if ended.job.request is None else f"request {ended.job.index}: "
            self._write(f"error: {where}{ended.error}")

    def lines(self) -> list[str]:
        """How many failed, where the output holds their errors."""
        if self._output is None or not self._num_failed:
            return []
        place = "the output" if self._output == "-" else self._output
        return [f"{self._num_failed} requests failed; their errors are in {place}"]


def warn_of_equal_samples(jobs: Sequence[Job], write: Callable[[str], None]) -> None:
    """One line, where a request asks for several samples and leaves nothing to chance."""
    for job in jobs:
        temperature, n = job.sampling.get("temperature", 1), job.sampling.get("n", 1)
        if isinstance(temperature, (int, float)) and temperature < GREEDY_BELOW and n > 1:
            write(f"warning: request {job.index}: its {n} samples are equal at temperature 0")
            return
