"""What a user may give as a prompt, told apart and made plain."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
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
    is_row = hasattr(prompt, "__iter__") and hasattr(prompt, "__len__")
    if not is_row or isinstance(prompt, (bytes, Mapping)):
        raise RequestError(
            "prompt",
            f"must be text, a chat (messages), or token ids; got {type(prompt).__name__}",
        )
    return "chat" if any(isinstance(item, Mapping) for item in prompt) else "token_ids"


def as_prompts(prompts: Any) -> list[Any]:
    """One prompt or a sequence of prompts, as a list of prompts."""
    if isinstance(prompts, Iterable) and not hasattr(prompts, "__len__"):
        prompts = list(prompts)  # a generator
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


def check_fields(request_id: Any, priority: Any, cache_salt: Any) -> None:
    """Refuse what the scheduler could not order by, or hash.

    Raises:
        RequestError: naming the field.
    """
    if _as_int(priority) is None:
        raise RequestError("priority", f"must be an integer, got {priority!r}")
    for name, text in (("request_id", request_id), ("cache_salt", cache_salt)):
        if text is None:
            continue
        if not isinstance(text, str):
            raise RequestError(name, f"must be text, got {text!r}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError(name, f"must be valid Unicode, got {text!r}") from None


def _as_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
