"""From what a user asks to requests of the engine: ids, settled params, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.data.params import SamplingParams
from runtime.data.prompts import Chat, Prompt, as_token_ids, kind_of
from runtime.data.request import Request
from runtime.engine import check_prompt
from runtime.errors import RequestError
from runtime.front.build import Parts
from runtime.front.live_request import LiveSample
from runtime.sampling import check_params, with_seed
from runtime.text import TextStream, Tokenizer

ParamsLike = SamplingParams | Mapping[str, Any] | None
"""None: the model's defaults; a mapping: changes to them; SamplingParams: exactly these."""


_NOT_VARIABLES = frozenset(("self", "messages", "tools", "add_generation_prompt"))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was encoded and checked, and only has to be queued."""

    text: str | None
    """None for token ids."""
    token_ids: list[int]
    params: SamplingParams


class InputProcessor:
    """Checks and encodes; nothing here is queued, and any thread may call it.

    Args:
        sampling: fields that requests take where they give none.
    """

    def __init__(self, parts: Parts, sampling: Mapping[str, Any]) -> None:
        self._parts = parts
        self._sampling = dict(sampling)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._parts.tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and output."""
        return self._parts.max_model_len

    def settle_params(self, params: ParamsLike) -> SamplingParams:
        """The params of a request; see `Runtime.settle_params`."""
        parts = self._parts
        if not isinstance(params, SamplingParams):
            given = self._given(params)
            params = SamplingParams.from_dict({**parts.spec.generation_defaults, **given})
        check_params(
            params,
            parts.engine.vocab_size,
            parts.tokenizer,
            eos_token_ids=parts.spec.eos_token_ids if params.heeds_eos else (),
            grammars=parts.grammars,
        )
        return params

    def encode(
        self,
        prompt: Prompt | None,
        chat: Chat | None,
        token_ids: Sequence[int] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[str | None, list[int]]:
        """The text of a prompt, None for token ids, and its ids.

        Args:
            add_special_tokens: of a text; a chat's template writes them itself.
            add_generation_prompt: whether a chat's text opens the assistant's turn.
            chat_template_kwargs: what the chat template is given besides.
        """
        given = [x for x in (prompt, chat, token_ids) if x is not None]
        if len(given) != 1:
            raise RequestError("prompt", "give exactly one of prompt, chat, token_ids")
        kind = "chat" if chat is not None else "token_ids" if token_ids is not None else None
        kind = kind or kind_of(given[0])
        if kind == "token_ids":
            return None, as_token_ids(given[0])
        tokenizer = self._parts.tokenizer
        if tokenizer is None:
            raise RequestError(kind, "this model has no tokenizer; give token_ids")
        if kind == "chat":
            variables = chat_template_kwargs or {}
            for name in _NOT_VARIABLES.intersection(variables):
                raise RequestError("chat_template_kwargs", f"{name} is given otherwise")
            text = tokenizer.render_chat(given[0], tools, add_generation_prompt, **variables)
            ids = tokenizer.encode(text, add_special_tokens=False)
        else:
            text, ids = given[0], tokenizer.encode(given[0], add_special_tokens)
        _check_known(kind, text, ids, tokenizer, self._parts.spec.vocab_size)
        return text, ids

    def check_ids(self, ids: list[int]) -> None:
        """Refuse a prompt that is empty, too long, or holds ids outside the vocabulary.

        Raises:
            RequestError: with the numbers.
        """
        check_prompt(ids, self._parts.engine.vocab_size, self._parts.max_model_len)

    def samples(
        self,
        request_id: str,
        group: str | None,
        ids: list[int],
        params: SamplingParams,
        *,
        priority: int,
        cache_salt: str | None,
        arrival_s: float | None,
    ) -> list[LiveSample]:
        """A request of the engine for each of `params.n` samples.

        Args:
            group: what samples that share prompt blocks have in common; None for a single one.
        """
        parts = self._parts
        eos = parts.spec.eos_token_ids if params.heeds_eos else ()
        samples = []
        for index, child in enumerate(with_seed(params)):
            name = request_id if group is None else f"{request_id}#{index}"
            if index:  # the prompt's log-probabilities come once
                child = child.updated(prompt_logprobs=None)
            sample = Request(name, ids, child, eos, priority, cache_salt, group)
            sample.arrival_s = sample.arrival_s if arrival_s is None else arrival_s
            parts.engine.check(sample)
            stream = TextStream(parts.tokenizer, ids, child) if parts.tokenizer else None
            samples.append(LiveSample(sample, stream))
        return samples

    def _given(self, params: Mapping[str, Any] | None) -> dict[str, Any]:
        if params is not None and not isinstance(params, Mapping):
            raise RequestError(
                "params", f"must be SamplingParams, a mapping or None, got {params!r:.60}"
            )
        return {**self._sampling, **(params or {})}


def _check_known(
    kind: str, text: str, ids: Sequence[int], tokenizer: Tokenizer, vocab_size: int
) -> None:
    """Refuse tokens that the tokenizer has and the model has no embedding for."""
    if not ids or max(ids) < vocab_size:
        return
    place = next(place for place, i in enumerate(ids) if i >= vocab_size)
    piece = tokenizer.piece(ids[place]) or ""
    at = text.find(piece)
    where = f"at character {at}, " if piece and at >= 0 else ""
    raise RequestError(
        kind,
        f"holds the token {piece!r} {where}token {place} (both from 0): its id {ids[place]} is "
        f"outside the model's vocabulary of {vocab_size}; the tokenizer has more tokens than the "
        "model",
    )
