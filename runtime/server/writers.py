"""How answers are written: a completion, a chat, each whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from runtime.data.results import Completion, Delta, Result
from runtime.server.intake import Asked
from runtime.server.logprobs import TokenTexts, completion_logprobs


class Writer(Protocol):
    """Choices of one request; `number` counts them over all prompts."""

    def head(self, *, is_chunk: bool) -> dict[str, Any]:
        """What every answer or chunk begins with."""

    def openings(self) -> Iterator[dict[str, Any]]:
        """Choices of the chunks that come before any token."""

    def choice(self, number: int, result: Result, sample: Completion) -> dict[str, Any]:
        """A whole choice."""

    def delta(self, number: int, delta: Delta) -> dict[str, Any] | None:
        """A choice of a chunk; None where there is nothing to say."""


class CompletionWriter:
    """Of /v1/completions."""

    def __init__(self, name: str, model: str, asked: Asked, texts: TokenTexts) -> None:
        self._head = head_of(f"cmpl-{name}", model)
        self._asked, self._texts = asked, texts
        self._offsets = [0] * asked.num_choices

    def head(self, *, is_chunk: bool) -> dict[str, Any]:
        return {**self._head, "object": "text_completion"}

    def openings(self) -> Iterator[dict[str, Any]]:
        """The prompts, where they are echoed."""
        if self._asked.echo:
            for number in range(self._asked.num_choices):
                yield self._choice(number, self._prompt_text(number), None, None)

    def choice(self, number: int, result: Result, sample: Completion) -> dict[str, Any]:
        asked = self._asked
        keeps = asked.keeps_output
        text = sample.text if keeps else ""
        if asked.echo:
            text = self._prompt_text(number) + text
        logprobs = None
        if asked.num_logprobs is not None:
            positions = [
                *(result.prompt_logprobs or ()),
                *((sample.logprobs or ()) if keeps else ()),
            ]
            logprobs = completion_logprobs(
                positions, asked.num_logprobs, self._texts, first_id=result.prompt_token_ids[0]
            )
        reason = sample.finish_reason if keeps else "length"
        return self._choice(number, text, logprobs, reason)

    def delta(self, number: int, delta: Delta) -> dict[str, Any] | None:
        logprobs = None
        if self._asked.num_logprobs is not None and delta.logprobs:
            offset = self._offsets[number]
            logprobs = completion_logprobs(
                delta.logprobs, self._asked.num_logprobs, self._texts, offset=offset
            )
        self._offsets[number] += len(delta.text)
        if not delta.text and logprobs is None and delta.finish_reason is None:
            return None
        return self._choice(number, delta.text, logprobs, delta.finish_reason)

    def _choice(
        self, number: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _prompt_text(self, number: int) -> str:
        prompt = self._asked.prompts[number // self._asked.n]
        if prompt.text is not None:
            return prompt.text
        return self._texts.joined(prompt.token_ids)


def usage_of(results: list[Result], keeps_output: bool = True) -> dict[str, Any]:
    """OpenAI's `usage` over the prompts of a request; each prompt counts once, whatever its n."""
    num_prompt = sum(result.num_prompt_tokens for result in results)
    num_output = sum(result.num_output_tokens for result in results) if keeps_output else 0
    num_cached = sum(result.num_cached_tokens for result in results)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def head_of(name: str, model: str) -> dict[str, Any]:
    return {"id": name, "created": int(time.time()), "model": model}
