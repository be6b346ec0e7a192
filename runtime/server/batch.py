"""Runs the requests of a batch, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from runtime.config import RunConfig
from runtime.errors import EngineError
from runtime.front.async_engine import AsyncRuntime
from runtime.server.batch_files import Line
from runtime.server.errors import api_error_of, bad_request, of_validation
from runtime.server.generation import KINDS, answer_whole, prepare, writer_of
from runtime.server.service import Service


async def run_batch(
    config: RunConfig,
    lines: Sequence[Line],
    write: Callable[[dict[str, Any]], None],
    stopped: asyncio.Event,
    model_name: str,
) -> int:
    """Run requests and write an answer for each as it ends; how many of these are errors.

    Args:
        stopped: when it is set, what has not ended is left out of the output.

    Raises:
        ConfigError, ModelError, BackendError: the model cannot be loaded.
        EngineError: the engine has stopped; what has not ended is left out.
    """
    async with AsyncRuntime(config) as runtime:
        service = Service(config, runtime, await runtime.inputs(), model_name)
        waiting = iter(lines)
        num_failed = 0

        async def work() -> None:
            nonlocal num_failed
            for line in waiting:
                row = await _row_of(service, line)
                write(row)
                num_failed += row["response"]["status_code"] != 200

        workers = [asyncio.ensure_future(work()) for _ in range(2 * config.scheduler.max_num_seqs)]
        everything = asyncio.gather(*workers)
        stop = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((everything, stop), return_when=asyncio.FIRST_COMPLETED)
        for task in (stop, *workers):
            task.cancel()
        await asyncio.gather(stop, *workers, return_exceptions=True)
        service.close()
        if not stopped.is_set():
            await everything  # it raises what stopped a worker
        return num_failed


async def _row_of(service: Service, line: Line) -> dict[str, Any]:
    name = f"batch-{line.custom_id}"
    try:
        status, body = 200, await _answer(service, line, name)
    except Exception as error:
        told = api_error_of(error)
        if told.status == 503:  # the engine is gone: the rest may run another time
            raise EngineError(told.message) from error
        status, body = told.status, told.body
    response = {"status_code": status, "request_id": name, "body": body}
    return {"id": name, "custom_id": line.custom_id, "response": response, "error": None}


async def _answer(service: Service, line: Line, name: str) -> dict[str, Any]:
    if line.method != "POST":
        raise bad_request("method", f"must be POST, got {line.method!r:.60}")
    kind = KINDS.get(line.url) if isinstance(line.url, str) else None
    if kind is None:
        raise bad_request("url", f"must be one of {', '.join(KINDS)}, got {line.url!r:.60}")
    try:
        body = kind.body.model_validate(line.body)
    except ValidationError as error:
        raise of_validation(error) from None
    if body.stream:
        raise bad_request("stream", "has no meaning in a batch")
    asked = await prepare(service, kind, body)
    return await answer_whole(service, asked, writer_of(service, kind, asked, name))
