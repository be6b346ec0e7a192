"""From a body to what the engine runs: prompts encoded, params settled.

It runs on a thread of its own, not on the event loop's and not on the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import RequestError
from runtime.front.input_processor import InputProcessor, Prepared
from runtime.server.bodies import ChatBody, CompletionBody, Sampling
from runtime.server.errors import api_error_of, bad_request
from runtime.server.tools import ToolUse

MAX_LOGPROBS = 20
"""The most likely tokens that may be asked for at each position."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that may run: each prompt gives `n` choices, numbered in order."""

    prompts: list[Prepared]
    n: int
    num_logprobs: int | None = None
    """The most likely tokens that a position shows, beside its own; None shows no probabilities."""
    echo: bool = False
    tool_use: ToolUse | None = None
    keeps_output: bool = True
    """False: only the prompt was asked for (max_tokens 0)."""
    priority: int = 0
    cache_salt: str | None = None

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n


def read_completion(
    body: CompletionBody,
    inputs: InputProcessor,
    sampling: Mapping[str, Any],
    tool_parser: str | None = None,
) -> Asked:
    """The prompts of a completion.

    Args:
        sampling: the run's own, which `inputs` applies.
        tool_parser: of no use here.

    Raises:
        ApiError: naming the field.
    """
    if body.suffix:
        raise bad_request("suffix", "is not supported")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request("best_of", "is not supported where it differs from n")
    check_num_logprobs("logprobs", body.logprobs)
    fields = sampling_fields(body)
    keeps_output = body.max_tokens != 0
    if not keeps_output:
        if not body.echo:
            raise bad_request("max_tokens", "must be >= 1 without echo, got 0")
        fields["max_tokens"] = 1
    if body.echo and body.stream and (body.logprobs is not None or not keeps_output):
        raise bad_request("echo", "with logprobs, or alone, cannot be streamed")
    fields["logprobs"] = body.logprobs
    fields["prompt_logprobs"] = body.logprobs if body.echo else None
    add_special_tokens = body.add_special_tokens is not False

    def prepare(prompt: str | list[int]) -> Prepared:
        text, ids = inputs.encode(prompt, None, None, None, add_special_tokens=add_special_tokens)
        inputs.check_ids(ids)
        return Prepared(text, ids, inputs.settle_params(fields))

    prompts = _each_prompt(body.prompt)
    try:
        prepared = [_of_item(prepare, prompts, number) for number in range(len(prompts))]
    except RequestError as error:
        raise api_error_of(error, names_of(body)) from None
    return Asked(
        prepared,
        body.n or 1,
        num_logprobs=body.logprobs,
        echo=bool(body.echo),
        keeps_output=keeps_output,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )


def sampling_fields(body: Sampling) -> dict[str, Any]:
    """What the body says of SamplingParams; a null is as good as absent."""
    given = {name: getattr(body, name) for name in Sampling.taken_by_the_runtime}
    fields = {name: value for name, value in given.items() if value is not None}
    constraint = _constraint(body)
    if constraint is not None:
        fields["structured_output"] = constraint
    return fields


def _constraint(body: Sampling) -> Mapping[str, Any] | None:
    form = body.response_format
    if form is None or form.type == "text":
        return body.structured_outputs
    if body.structured_outputs is not None:
        raise bad_request("structured_outputs", "cannot go with response_format")
    if form.type == "json_object":
        return {"json": {"type": "object"}}
    if form.json_schema is None:
        raise bad_request("response_format.json_schema", "is missing")
    return {"json": form.json_schema.schema_}


def names_of(body: Sampling) -> dict[str, str]:
    """Fields of the runtime -> those of this body."""
    names = {}
    if body.structured_outputs is not None:
        names["structured_output"] = "structured_outputs"
    if isinstance(body, ChatBody):
        if body.tools:
            names["structured_output"] = "tools"
        names["logprobs"] = "top_logprobs"
        if body.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
    return names


def _each_prompt(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt", "must not be empty")
    return [prompt] if isinstance(prompt[0], int) else list(prompt)


def _of_item(prepare: Any, prompts: list[Any], number: int) -> Prepared:
    try:
        made: Prepared = prepare(prompts[number])
        return made
    except RequestError as error:
        if len(prompts) == 1 or error.field not in ("prompt", "token_ids"):
            raise
        raise error.of_item(number, len(prompts)) from None


def check_num_logprobs(name: str, number: int | None) -> None:
    if number is not None and not 0 <= number <= MAX_LOGPROBS:
        raise bad_request(name, f"must be an integer in [0, {MAX_LOGPROBS}], got {number}")
