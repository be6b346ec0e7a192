"""Errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from runtime.errors import EngineError, RequestError

_PARAMS = {
    "chat": "messages",
    "token_ids": "prompt",
    "structured_output": "response_format",
    "prompt_logprobs": "logprobs",
}
"""Fields of the runtime that clients know by another name."""


_UNIONS = {
    "prompt": "must be text, a list of texts, token ids, or a list of lists of token ids",
    "stop": "must be text or a list of texts",
    "tool_choice": "must be none, auto, required, or an object that names a function",
}
"""What a field of several types takes: pydantic speaks of the first alone."""


class ApiError(Exception):
    """What a client is answered in place of what it asked for.

    Args:
        status: of HTTP.
        param: the field at fault.
        code: a word for programs, such as model_not_found.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message)  # what pickle and copy make it of again
        self.status, self.message = status, message
        self.param, self.code = param, code
        self.headers = dict(headers or {})

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(param: str | None, message: str) -> ApiError:
    """Status 400, about one field."""
    return ApiError(400, message if param is None else f"{param}: {message}", param=param)


def api_error_of(error: BaseException, names: Mapping[str, str] | None = None) -> ApiError:
    """How a client is told of an error.

    Args:
        names: more fields of the runtime that this client knows by another name.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        param = {**_PARAMS, **(names or {})}.get(error.field, error.field)
        return bad_request(param, str(error).removeprefix(f"{error.field}: "))
    if isinstance(error, EngineError):
        return ApiError(503, str(error), code="engine_stopped")
    return ApiError(500, f"{type(error).__name__}: {error}")


def of_validation(error: ValidationError) -> ApiError:
    """Of a body that does not fit its model: the first field that is wrong."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return bad_request(
            None, f"the body is no JSON: {first['msg'].removeprefix('Invalid JSON: ')}"
        )
    param = _param(first["loc"]) or None
    if first["loc"][:1] == ("tool_choice",):
        param = "tool_choice"  # what is wrong inside depends on which of its types is meant
    if first["type"] == "extra_forbidden":
        return bad_request(param, "unknown field; docs/serving.md lists those that are taken")
    if first["type"] == "missing":
        return bad_request(param, "is required")
    message = _UNIONS.get(param or "") or first["msg"].replace("Input should", "must", 1)
    return bad_request(param, f"{message}, got {_short(first['input'])}")


def _param(loc: tuple[int | str, ...]) -> str:
    """`stream_options.include_usage`, `messages[0]`; names that pydantic gives the parts of a union
    are no fields."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "dict", "list"):
            out += f".{part}" if out else part
        else:
            break
    return out


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
