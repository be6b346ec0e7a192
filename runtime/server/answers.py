"""Runs what was asked and writes it down, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

import msgspec

from runtime.data.results import Delta, Result
from runtime.front.async_engine import AsyncRuntime
from runtime.server.errors import ApiError, api_error_of
from runtime.server.intake import Asked
from runtime.server.writers import Writer, usage_of

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
log = logging.getLogger(__name__)
to_json = msgspec.json.Encoder().encode
"""Numbers that JSON cannot write become null."""

DONE = b"data: [DONE]\n\n"


class ClientLeftError(Exception):
    """Nobody waits for the answer."""


def event(message: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + to_json(message) + b"\n\n"


async def while_client_stays(work: Awaitable[T], receive: Receive) -> T:
    """Waits for `work`; cancels it as soon as the client has left. The body was read before.

    Raises:
        ClientLeftError: it has left.
    """
    task = asyncio.ensure_future(work)
    leaves = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((task, leaves), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeftError
    finally:
        task.cancel()
        leaves.cancel()
        await asyncio.gather(task, leaves, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def deltas_of(
    runtime: AsyncRuntime, asked: Asked, on_end: Callable[[Result], None]
) -> AsyncGenerator[tuple[int, Delta], None]:
    """What each step adds, with the number of its choice; leaving the loop aborts all of it.

    Args:
        on_end: is told of every prompt that has ended.

    Raises:
        ApiError: a sample has failed.
        RequestError, EngineError: as AsyncRuntime.stream.
    """
    streams = [
        runtime.submit(prompt, priority=asked.priority, cache_salt=asked.cache_salt)
        for prompt in asked.prompts
    ]
    async with aclosing(_merged(streams)) as deltas:
        async for number, delta in deltas:
            if delta.finished is not None:
                on_end(delta.finished)
                _check_ended_well(delta.finished)
            yield number * asked.n + delta.index, delta


async def _merged(
    streams: list[AsyncGenerator[Delta, None]],
) -> AsyncGenerator[tuple[int, Delta], None]:
    """The deltas of several streams as they come, each with the number of its stream."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    waiting = {asyncio.ensure_future(anext(s)): (i, s) for i, s in enumerate(streams)}
    try:
        while waiting:
            ready, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in ready:
                number, stream = waiting.pop(task)
                delta = task.result()
                if delta.finished is None:
                    waiting[asyncio.ensure_future(anext(stream))] = (number, stream)
                yield number, delta
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with AsyncExitStack() as stack:
            for stream in streams:
                stack.push_async_callback(stream.aclose)


def _check_ended_well(result: Result) -> None:
    reasons = [sample.finish_reason for sample in result.outputs]
    if "error" in reasons:
        raise ApiError(500, result.error or "the request failed", code="request_failed")
    if "abort" in reasons:
        raise ApiError(503, "the server ended this request: it is shutting down", code="aborted")


async def whole(
    deltas: AsyncIterator[tuple[int, Delta]], asked: Asked, writer: Writer
) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    results: dict[int, Result] = {}
    async for number, delta in deltas:
        if delta.finished is not None:
            results[number // asked.n] = delta.finished
    in_order = [results[number] for number in range(len(asked.prompts))]
    choices = [
        writer.choice(number * asked.n + index, result, sample)
        for number, result in enumerate(in_order)
        for index, sample in enumerate(result.outputs)
    ]
    usage = usage_of(in_order, asked.keeps_output)
    return {**writer.head(is_chunk=False), "choices": choices, "usage": usage}


async def events(
    deltas: AsyncIterator[tuple[int, Delta]], writer: Writer, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answer of a request that streams; an error is its last event but one."""
    head = writer.head(is_chunk=True)
    unknown = {"usage": None} if include_usage else {}
    results = []
    try:
        for choice in writer.openings():
            yield event({**head, "choices": [choice], **unknown})
        async for number, delta in deltas:
            found = writer.delta(number, delta)
            if found is not None:
                yield event({**head, "choices": [found], **unknown})
            if delta.finished is not None:
                results.append(delta.finished)
        if include_usage:
            yield event({**head, "choices": [], "usage": usage_of(results)})
    except Exception as error:
        told = api_error_of(error)
        if told.status == 500:
            log.error("a stream failed: %s", told.message)
        yield event(told.body)
    yield DONE
