"""The application: paths and what stands before them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.server import facts, tokens
from runtime.server.completions import Generation
from runtime.server.errors import ApiError, api_error_of
from runtime.server.generation import KINDS
from runtime.server.http import answer, error_answer
from runtime.server.keys import ApiKeys
from runtime.server.service import Service

log = logging.getLogger(__name__)
_OPEN_PATHS = ("/health", "/metrics", "/version", "/load")
"""They need no key."""
_MAX_ID = 128

Handler = Callable[[Service, Request], Awaitable[object]]


def make_app(service: Service, keys: ApiKeys) -> ASGIApp:
    """The ASGI application of one service."""

    def told(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            path, method = request.url.path, request.method
            error = ApiError(error.status_code, f"{method} {path}: {error.detail}")
        return error_answer(error)

    def get(path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return answer(await handler(service, request))
            except Exception as error:
                return error_answer(_logged(error))

        return Route(path, endpoint, methods=["GET"])

    def post(path: str, handler: Handler) -> Route:
        route = get(path, handler)
        return Route(path, route.endpoint, methods=["POST"])

    routes = [
        *(Route(path, Generation(service, kind), methods=["POST"]) for path, kind in KINDS.items()),
        get("/v1/models", facts.models),
        get("/v1/models/{name:path}", facts.model),
        post("/tokenize", tokens.tokenize),
        post("/detokenize", tokens.detokenize),
        get("/health", facts.health),
        get("/version", facts.version),
        get("/load", facts.load),
        get("/metrics", facts.metrics),
    ]
    return Door(Starlette(routes=routes, exception_handlers={HTTPException: told}), service, keys)


def _logged(error: Exception) -> Exception:
    if api_error_of(error).status == 500:
        log.error("a request failed", exc_info=error)
    return error


class Door:
    """Before every path: the key, the name of the request, the count of answers."""

    def __init__(self, app: ASGIApp, service: Service, keys: ApiKeys) -> None:
        self._app, self._service, self._keys = app, service, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                self._service.metrics.answered(message["status"])
            await send(message)

        app = self._app
        is_open = scope["path"] in _OPEN_PATHS
        if not is_open and not self._keys.admits(headers.get("authorization")):
            app = error_answer(_no_key(headers.get("authorization")))
        await app(scope, receive, send_named)


def _no_key(authorization: str | None) -> ApiError:
    message = "a key is needed: Authorization: Bearer KEY"
    if authorization is not None:
        message = "this key is not known here"
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _request_id(given: str | None) -> str:
    """The client's own name of its request, where it is a short and plain one."""
    if given and len(given) <= _MAX_ID and given.isascii() and given.isprintable():
        return given
    return secrets.token_hex(16)
