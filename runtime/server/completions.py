"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from runtime.server.answers import (
    ClientLeftError,
    deltas_of,
    events,
    while_client_stays,
    whole,
)
from runtime.server.bodies import ChatBody, CompletionBody, Sampling
from runtime.server.errors import api_error_of, bad_request
from runtime.server.http import answer, error_answer, read
from runtime.server.intake import Asked, read_chat, read_completion
from runtime.server.service import Service
from runtime.server.writers import ChatWriter, CompletionWriter, Writer

log = logging.getLogger(__name__)
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class _Generation:
    """One path as an ASGI application: it holds its place in the gate until the last byte, and ends
    the request when the client leaves."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def _asked(self, request: Request) -> tuple[Sampling, Asked]:
        raise NotImplementedError

    def _writer(self, name: str, asked: Asked) -> Writer:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, request = self._service, Request(scope, receive)
        try:
            service.check_alive()
            body, asked = await self._asked(request)
            writer = self._writer(scope["state"]["request_id"], asked)
            with service.gate.entered(asked.num_choices):
                if body.stream:
                    wants = body.stream_options and body.stream_options.include_usage
                    work = self._stream(asked, writer, bool(wants), send)
                    await while_client_stays(work, receive)
                    return
                response = answer(await while_client_stays(self._whole(asked, writer), receive))
        except (ClientLeftError, ClientDisconnect):
            return
        except Exception as error:
            if api_error_of(error).status == 500:
                log.error("a request failed", exc_info=error)
            response = error_answer(error)
        await response(scope, receive, send)

    async def _whole(self, asked: Asked, writer: Writer) -> dict[str, Any]:
        service = self._service
        async with aclosing(deltas_of(service.runtime, asked, service.metrics.ended)) as deltas:
            return await whole(deltas, asked, writer)

    async def _stream(self, asked: Asked, writer: Writer, wants_usage: bool, send: Send) -> None:
        service = self._service
        start = {"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM]}
        await send(start)
        async with (
            aclosing(deltas_of(service.runtime, asked, service.metrics.ended)) as deltas,
            aclosing(events(deltas, writer, wants_usage)) as parts,
        ):
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Completions(_Generation):
    async def _asked(self, request: Request) -> tuple[Sampling, Asked]:
        service = self._service
        body = await read(service, request, CompletionBody)
        _check(service, body)
        return body, await service.on_text_thread(read_completion, body, service.inputs)

    def _writer(self, name: str, asked: Asked) -> Writer:
        return CompletionWriter(name, self._service.model_name, asked, self._service.texts)


class Chats(_Generation):
    async def _asked(self, request: Request) -> tuple[Sampling, Asked]:
        service = self._service
        body = await read(service, request, ChatBody)
        _check(service, body)
        is_given = "max_tokens" in service.config.sampling
        return body, await service.on_text_thread(read_chat, body, service.inputs, is_given)

    def _writer(self, name: str, asked: Asked) -> Writer:
        return ChatWriter(name, self._service.model_name, asked, self._service.texts)


def _check(service: Service, body: Sampling) -> None:
    service.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "goes with stream: true only")
