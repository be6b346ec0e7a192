"""Bodies in and answers out."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from runtime.server.answers import to_json
from runtime.server.errors import ApiError, api_error_of, of_validation
from runtime.server.service import Service

B = TypeVar("B", bound=BaseModel)
_LARGE = 64 * 1024
"""Bytes of a body from which it is parsed beside the event loop."""


async def read(service: Service, request: Request, kind: type[B]) -> B:
    """The body of a request.

    Raises:
        ApiError: too large (413), no JSON or not what `kind` takes (400).
    """
    data = await _bytes_of(request, service.config.server.max_body)

    def parse() -> B:
        return kind.model_validate_json(data)

    try:
        return parse() if len(data) < _LARGE else await service.on_text_thread(parse)
    except ValidationError as error:
        raise of_validation(error) from None


async def _bytes_of(request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(most)
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > most:
            raise _too_large(most)
    return bytes(found)


def _too_large(most: int) -> ApiError:
    message = f"the body is larger than {most} bytes (server.max_body)"
    return ApiError(413, message, headers={"Connection": "close"})


def answer(content: object, status: int = 200) -> Response:
    """JSON of plain data; a Response as it is."""
    if isinstance(content, Response):
        return content
    return Response(to_json(content), status, media_type="application/json")


def error_answer(error: Exception) -> Response:
    """An error in OpenAI's form."""
    told = api_error_of(error)
    response = answer(told.body, told.status)
    response.headers.update(told.headers)
    return response
