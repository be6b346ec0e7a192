"""What a user may give as a prompt, told apart and made plain."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import RequestError

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Chat | Sequence[int]
"""Text, a chat (messages with role and content), or token ids."""


def kind_of(prompt: Any) -> str:
    """The request field of a prompt: "prompt" for text, "chat" for messages, "token_ids" for ids.

    Raises:
        RequestError: for anything else.
    """
    if isinstance(prompt, str):
        return "prompt"
    if not hasattr(prompt, "__iter__") or isinstance(prompt, (bytes, Mapping)):
        raise RequestError(
            "prompt",
            f"must be text, a chat (messages), or token ids; got {type(prompt).__name__}",
        )
    return "chat" if any(isinstance(item, Mapping) for item in prompt) else "token_ids"


def as_prompts(prompts: Any) -> list[Any]:
    """One prompt or a sequence of prompts, as a list of prompts."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        return [prompts]
    if prompts and (isinstance(prompts[0], Mapping) or _as_int(prompts[0]) is not None):
        return [prompts]
    return list(prompts)


def as_token_ids(values: Any) -> list[int]:
    """Token ids as plain ints; numpy integers and tensors of one dimension are taken too.

    Raises:
        RequestError: anything that is not a row of integers.
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise RequestError("token_ids", f"must be a list of integers, got {values!r:.60}")
    ids = []
    for position, value in enumerate(values):
        number = _as_int(value)
        if number is None:
            raise RequestError("token_ids", f"position {position} holds {value!r}, not an integer")
        ids.append(number)
    return ids


def _as_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
