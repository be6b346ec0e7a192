"""From a chat's body to what the engine runs; as `intake`, on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.errors import RequestError
from runtime.front.input_processor import InputProcessor, Prepared
from runtime.server.bodies import ChatBody
from runtime.server.errors import api_error_of, bad_request
from runtime.server.intake import Asked, check_num_logprobs, names_of, sampling_fields
from runtime.server.tools import ToolUse, plain_messages, tool_use_of


def read_chat(
    body: ChatBody,
    inputs: InputProcessor,
    sampling: Mapping[str, Any],
    tool_parser: str | None = None,
) -> Asked:
    """Of a chat; without max_tokens, an answer may fill what the model's length leaves.

    Args:
        sampling: the run's own, which `inputs` applies.
        tool_parser: of the model's way of calling tools.

    Raises:
        ApiError: naming the field.
    """
    if body.modalities not in (None, ["text"]):
        raise bad_request("modalities", "only text is supported")
    tool_use = tool_use_of(body, tool_parser)
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs", "needs logprobs: true")
    check_num_logprobs("top_logprobs", body.top_logprobs)
    try:
        text, ids = inputs.encode(
            None,
            plain_messages(body.messages),
            None,
            None if tool_use is None else tool_use.tools,
            add_generation_prompt=body.add_generation_prompt is not False,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        inputs.check_ids(ids)
        fields = _fields(body, tool_use)
        if "max_tokens" not in {**sampling, **fields}:
            fields["max_tokens"] = inputs.max_model_len - len(ids)
        prepared = Prepared(text, ids, inputs.settle_params(fields))
    except RequestError as error:
        raise api_error_of(error, {**names_of(body), "prompt": "messages"}) from None
    return Asked(
        [prepared],
        body.n or 1,
        num_logprobs=fields.get("logprobs"),
        tool_use=tool_use,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )


def _fields(body: ChatBody, tool_use: ToolUse | None) -> dict[str, Any]:
    """What the body says of SamplingParams."""
    fields = sampling_fields(body)
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    max_tokens = _max_tokens(body)
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if tool_use is not None:
        fields.setdefault("skip_special_tokens", False)  # they may say where a call begins
        if tool_use.constraint is not None:
            fields["structured_output"] = tool_use.constraint
    return fields


def _max_tokens(body: ChatBody) -> int | None:
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise bad_request("max_completion_tokens", f"contradicts max_tokens {body.max_tokens}")
    return both[0] if both[1] is None else both[1]
