"""What a user may give as a prompt, told apart and made plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import RequestError

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Chat | Sequence[int]
"""Text, a chat (messages with role and content), or token ids."""


def kind_of(prompt: Any) -> str:
    """ "prompt" for text, "chat" for messages, "token_ids" for ids.

    Raises:
        RequestError: for anything else.
    """
    if isinstance(prompt, str):
        return "prompt"
    first = next(iter(prompt), None) if hasattr(prompt, "__iter__") else prompt
    if isinstance(first, Mapping):
        return "chat"
    if hasattr(prompt, "__iter__") and (first is None or hasattr(first, "__index__")):
        return "token_ids"
    raise RequestError(
        "prompt", f"must be text, a chat (messages), or token ids; got {type(prompt).__name__}"
    )


def as_prompts(prompts: Any) -> list[Any]:
    """One prompt or a sequence of prompts, as a list of prompts."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        return [prompts]
    if prompts and (isinstance(prompts[0], Mapping) or hasattr(prompts[0], "__index__")):
        return [prompts]
    return list(prompts)


def as_token_ids(values: Any) -> list[int]:
    """Token ids as plain ints; numpy integers and tensors of one dimension are taken too.

    Raises:
        RequestError: anything that is not an integer.
    """
    ids = []
    for position, value in enumerate(values):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise RequestError("token_ids", f"position {position} holds {value!r}, not an integer")
        ids.append(int(value))
    return ids
