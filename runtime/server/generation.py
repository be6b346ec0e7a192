"""The two kinds of completion, from a body to the whole answer, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from runtime.server.answers import deltas_of, whole
from runtime.server.bodies import ChatBody, CompletionBody, Sampling
from runtime.server.chat_intake import read_chat
from runtime.server.chat_writer import ChatWriter
from runtime.server.errors import bad_request
from runtime.server.intake import Asked, read_completion
from runtime.server.service import Service
from runtime.server.writers import CompletionWriter, Writer


@dataclass(frozen=True, slots=True)
class Kind:
    """What its body is, how it is read, and how its answer is written."""

    body: type[Sampling]
    read: Callable[..., Asked]
    writer: Callable[..., Writer]


KINDS = {
    "/v1/completions": Kind(CompletionBody, read_completion, CompletionWriter),
    "/v1/chat/completions": Kind(ChatBody, read_chat, ChatWriter),
}
"""By their paths."""


async def prepare(service: Service, kind: Kind, body: Sampling) -> Asked:
    """Encode and check a body, beside the event loop.

    Raises:
        ApiError: naming the field.
    """
    service.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "goes with stream: true only")
    sampling = service.config.sampling
    return await service.on_text_thread(
        kind.read, body, service.inputs, sampling, service.tool_parser
    )


def writer_of(service: Service, kind: Kind, asked: Asked, name: str) -> Writer:
    """Args: name: of the request, the end of the answer's id."""
    return kind.writer(name, service.model_name, asked, service.texts)


async def answer_whole(service: Service, asked: Asked, writer: Writer) -> dict[str, Any]:
    """Run it to its end; cancelling ends it.

    Raises:
        ApiError, RequestError, EngineError: it has failed.
    """
    async with aclosing(deltas_of(service.runtime, asked, service.metrics.ended)) as deltas:
        return await whole(deltas, asked, writer)
