"""/v1/completions and /v1/chat/completions over HTTP."""

from __future__ import annotations

import logging
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from runtime.server.answers import ClientLeftError, deltas_of, events, while_client_stays
from runtime.server.errors import api_error_of
from runtime.server.generation import Kind, answer_whole, prepare, writer_of
from runtime.server.http import answer, error_answer, read
from runtime.server.intake import Asked
from runtime.server.service import Service
from runtime.server.writers import Writer

log = logging.getLogger(__name__)
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Generation:
    """One path as an ASGI application: it holds its place in the gate until the last byte, and ends
    the request when the client leaves."""

    def __init__(self, service: Service, kind: Kind) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, kind = self._service, self._kind
        try:
            service.check_alive()
            body = await read(service, Request(scope, receive), kind.body)
            asked = await prepare(service, kind, body)
            writer = writer_of(service, kind, asked, scope["state"]["request_id"])
            with service.gate.entered(asked.num_choices):
                if body.stream:
                    wants = body.stream_options and body.stream_options.include_usage
                    work = self._stream(asked, writer, bool(wants), send)
                    await while_client_stays(work, receive)
                    return
                found = await while_client_stays(answer_whole(service, asked, writer), receive)
                response = answer(found)
        except (ClientLeftError, ClientDisconnect):
            return
        except Exception as error:
            if api_error_of(error).status == 500:
                log.error("a request failed", exc_info=error)
            response = error_answer(error)
        await response(scope, receive, send)

    async def _stream(self, asked: Asked, writer: Writer, wants_usage: bool, send: Send) -> None:
        service = self._service
        await send({"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM]})
        async with (
            aclosing(deltas_of(service.runtime, asked, service.metrics.ended)) as deltas,
            aclosing(events(deltas, writer, wants_usage)) as parts,
        ):
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
