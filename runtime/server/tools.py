"""What a chat's body says of tools, and what follows for its prompt, its grammar and its answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.server.bodies import ChatBody, NamedTool, Tool
from runtime.server.errors import bad_request
from runtime.server.tool_parsers import PARSERS, Arguments, ToolParser, Whole

_MISTRAL_ID = 9
"""Characters of a call's id: its template takes no other number."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a chat uses tools."""

    tools: tuple[dict[str, Any], ...]
    """As the chat template takes them."""
    constraint: Mapping[str, Any] | None
    """Of the output, where a call is required."""
    parser: str
    """`required`, `named`, or a name of PARSERS."""
    function: str | None = None
    """The one that must be called."""

    def new_parser(self) -> ToolParser:
        """For one answer."""
        if self.parser == "named":
            return Arguments(self.function or "")
        return Whole(("[",)) if self.parser == "required" else PARSERS[self.parser]()

    def new_id(self) -> str:
        """Of a call."""
        if self.parser == "mistral":
            return secrets.token_hex(_MISTRAL_ID)[:_MISTRAL_ID]
        return f"call_{secrets.token_hex(12)}"


def tool_use_of(body: ChatBody, parser: str | None) -> ToolUse | None:
    """None where no tool may be called.

    Args:
        parser: of the model's way of writing calls.

    Raises:
        ApiError: naming the field.
    """
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none"):
            raise bad_request("tool_choice", "needs tools")
        return None
    if choice == "none":
        return None
    if body.response_format is not None or body.structured_outputs is not None:
        name = "response_format" if body.response_format else "structured_outputs"
        raise bad_request(name, 'cannot go with tools, unless tool_choice is "none"')
    tools = tuple(tool.model_dump(exclude_none=True) for tool in body.tools)
    if isinstance(choice, NamedTool):
        return _named(tools, choice.function.name)
    if choice == "required":
        return ToolUse(tools, {"json": _calls_schema(body.tools, body.parallel_tool_calls)}, choice)
    if parser is None:
        raise bad_request(
            "tools",
            "this model's chat template shows no way of calling tools that is known here; "
            'set server.tool_parser, or ask for a call with tool_choice "required"',
        )
    return ToolUse(tools, None, parser)


def _named(tools: tuple[dict[str, Any], ...], name: str) -> ToolUse:
    for tool in tools:
        if tool["function"]["name"] == name:
            return ToolUse(tools, {"json": _parameters(tool["function"])}, "named", name)
    raise bad_request("tool_choice", f"{name!r:.60} is none of the tools")


def _calls_schema(tools: Sequence[Tool], may_be_several: bool | None) -> dict[str, Any]:
    """Of a list of calls, each of one of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": _parameters(tool.function.model_dump()),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    most = {"maxItems": 1} if may_be_several is False else {}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object"}


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates take them: the arguments of earlier calls are objects there, and texts
    in OpenAI's form."""
    return [_plain(message) if message.get("tool_calls") else message for message in messages]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise bad_request("messages", "tool_calls must be a list")
    return {**message, "tool_calls": [_plain_call(call) for call in calls]}


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
