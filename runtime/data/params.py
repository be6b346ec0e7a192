"""SamplingParams: what one request asks of sampling and stopping.

Names and defaults follow vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from runtime.errors import RequestError

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy."""

MAX_SAMPLES = 16384
"""The largest `n`."""

MAX_TOKENS = 2**30
"""The largest `max_tokens`: counts of tokens are 32-bit."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A constraint on the output text; exactly one field is set."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if len(given) != 1:
            raise RequestError(
                "structured_output",
                f"give exactly one of json, regex, grammar, choice; got {given or 'none'}",
            )
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name), str | None):
                raise RequestError("structured_output", f"{name} must be text")
        if not isinstance(self.json, str | Mapping | None):
            raise RequestError("structured_output", "json must be a schema: a mapping or JSON text")
        if self.choice is not None:
            is_list = isinstance(self.choice, Sequence) and not isinstance(self.choice, str)
            texts = tuple(self.choice) if is_list else ()
            if not texts or not all(isinstance(t, str) and t for t in texts):
                raise RequestError("structured_output", "choice must be a list of non-empty texts")
            object.__setattr__(self, "choice", texts)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StructuredOutput:
        """From a mapping with one key."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise RequestError(
                    "structured_output", f"unknown kind {name!r}; allowed: {', '.join(known)}"
                )
        return cls(**values)


LogitsProcessor = Callable[[Sequence[int], Any], Any]
"""(token ids so far, logits [V] float32 tensor) -> logits [V]; called once per sampled token of its
request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops; validated when made.

    Raises:
        RequestError: naming the field and what is allowed.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    structured_output: StructuredOutput | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def heeds_eos(self) -> bool:
        """Whether an EOS token ends the request. It does with structured output, whatever
        `ignore_eos` says: one is sampled only where the grammar has nothing else."""
        return not self.ignore_eos or self.structured_output is not None

    @property
    def needs_known_tokens(self) -> bool:
        """Whether the host must know a token before the next one can be sampled: it changes the
        next one's logits, or its log-probabilities are read with it."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return (
            penalties != (0, 0, 1)
            or self.logprobs is not None
            or bool(self.bad_words or self.structured_output or self.logits_processors)
        )

    def updated(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated again; an unknown name is a RequestError."""
        _check_names(changes)
        return replace(self, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Make params from a mapping (YAML, JSON); an unknown name is a RequestError with a
        suggestion."""
        _check_names(values)
        return cls(**{**values, **_int_keys(values.get("logit_bias"))})

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name), text_is_one=True))
        for name in ("stop_token_ids", "logits_processors"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            allowed = _as_tuple("allowed_token_ids", self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", allowed)
        if isinstance(self.structured_output, Mapping):
            made = StructuredOutput.from_dict(self.structured_output)
            object.__setattr__(self, "structured_output", made)
        _check_ranges(self)
        _check_texts_and_ids(self)


def _as_tuple(name: str, value: Any, text_is_one: bool = False) -> tuple[Any, ...]:
    if value is None:
        return ()
    if text_is_one and isinstance(value, str):
        return (value,)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise RequestError(name, f"must be a list, got {value!r}")
    return tuple(value)


def _int_keys(bias: Any) -> dict[str, Any]:
    """logit_bias with its keys as integers: JSON has no others than texts."""
    if not isinstance(bias, Mapping):
        return {}
    keys = {k: int(k) if isinstance(k, str) and k.isdecimal() else k for k in bias}
    return {"logit_bias": {keys[k]: bias[k] for k in bias}}


def _check_names(values: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(SamplingParams)]
    for name in values:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known fields: {', '.join(known)}"
            raise RequestError(str(name), f"unknown sampling field{hint}")


def _check_ranges(p: SamplingParams) -> None:
    _number(p, "temperature", "a finite number >= 0", lambda v: v >= 0)
    _number(p, "top_p", "in (0, 1]", lambda v: 0 < v <= 1)
    _number(p, "min_p", "in [0, 1]", lambda v: 0 <= v <= 1)
    _number(p, "presence_penalty", "in [-2, 2]", lambda v: -2 <= v <= 2)
    _number(p, "frequency_penalty", "in [-2, 2]", lambda v: -2 <= v <= 2)
    _number(p, "repetition_penalty", "in [0.01, 100]", lambda v: 0.01 <= v <= 100)
    _integer(p, "n", f"an integer in [1, {MAX_SAMPLES}]", lambda v: 1 <= v <= MAX_SAMPLES)
    _integer(p, "top_k", "an integer >= -1 (0 and -1 are off)", lambda v: v >= -1)
    _integer(p, "max_tokens", "an integer >= 1", lambda v: v >= 1)
    _integer(p, "max_tokens", f"an integer <= {MAX_TOKENS}", lambda v: v <= MAX_TOKENS)
    _integer(
        p,
        "min_tokens",
        f"an integer in [0, max_tokens = {p.max_tokens}]",
        lambda v: 0 <= v <= p.max_tokens,
    )
    _integer(p, "seed", "an integer in [0, 2**63) or null", lambda v: 0 <= v < 2**63, optional=True)
    _integer(
        p,
        "logprobs",
        "an integer >= -1 (-1 is the whole vocabulary) or null",
        lambda v: v >= -1,
        optional=True,
    )
    _integer(p, "prompt_logprobs", "an integer >= -1 or null", lambda v: v >= -1, optional=True)
    for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
        if not isinstance(getattr(p, name), bool):
            raise RequestError(name, f"must be true or false, got {getattr(p, name)!r}")


def _check_texts_and_ids(p: SamplingParams) -> None:
    for name in ("stop", "bad_words"):
        for text in getattr(p, name):
            if not isinstance(text, str) or not text:
                raise RequestError(name, f"must be non-empty strings, got {text!r}")
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token_id in getattr(p, name) or ():
            if not _is_int(token_id) or token_id < 0:
                raise RequestError(name, f"must be token ids (integers >= 0), got {token_id!r}")
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        raise RequestError("allowed_token_ids", "must not be empty: no token could be sampled")
    if not isinstance(p.structured_output, StructuredOutput | None):
        raise RequestError("structured_output", f"must be a mapping, got {p.structured_output!r}")
    for processor in p.logits_processors:
        if not callable(processor):
            raise RequestError("logits_processors", f"must be functions, got {processor!r}")
    if not isinstance(p.logit_bias, Mapping | None):
        raise RequestError("logit_bias", f"must map token ids to numbers, got {p.logit_bias!r}")
    for token_id, bias in (p.logit_bias or {}).items():
        if not _is_int(token_id) or token_id < 0:
            raise RequestError(
                "logit_bias", f"keys must be token ids (integers >= 0), got {token_id!r}"
            )
        if not _is_number(bias) or not -100 <= bias <= 100:
            raise RequestError(
                "logit_bias", f"values must be in [-100, 100], got {bias!r} for token {token_id}"
            )


def _number(p: SamplingParams, name: str, allowed: str, accept: Callable[[float], bool]) -> None:
    value = getattr(p, name)
    if not _is_number(value) or not accept(value):
        raise RequestError(name, f"must be {allowed}, got {value!r}")


def _integer(
    p: SamplingParams,
    name: str,
    allowed: str,
    accept: Callable[[int], bool],
    optional: bool = False,
) -> None:
    value = getattr(p, name)
    if optional and value is None:
        return
    if not _is_int(value) or not accept(value):
        raise RequestError(name, f"must be {allowed}, got {value!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False
