"""AsyncRuntime: a Runtime for asyncio, on one thread of its own.

Event loops never wait for a step, and the engine never waits for a reader. Every call becomes an
order that the engine thread carries out between two steps; what a step added goes to the mailboxes
of its requests.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from runtime.config import RuntimeConfig, load_run_config
from runtime.data.prompts import Prompt
from runtime.data.results import Delta, Result
from runtime.front.api import Runtime
from runtime.front.engine_thread import EngineThread, Mailbox
from runtime.front.input_processor import InputProcessor, ParamsLike, Prepared
from runtime.observe.stats import RuntimeStats

T = TypeVar("T")


class AsyncRuntime:
    """An inference runtime for any number of asyncio clients, in one event loop or several.

    A request belongs to the loop that iterates it. Its error is raised there, and nowhere else; a
    crash of the engine is raised in every loop that waits, as EngineError with its cause.

    Args:
        config: the settled configuration.
        max_inflight: requests in the engine at once, running and waiting; further ones wait in
            their client, first come first served.
        make: builds the runtime; called once, on the engine thread.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        max_inflight: int = 1024,
        make: Callable[[RuntimeConfig], Runtime] = Runtime,
    ) -> None:
        if max_inflight < 1:
            raise ValueError(f"max_inflight must be >= 1, got {max_inflight}")
        self._engine = EngineThread(partial(make, config), max_inflight)
        self._stop = weakref.finalize(self, self._engine.stop)

    @classmethod
    def from_yaml(
        cls, path: str, overrides: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncRuntime:
        """From a YAML run file, as Runtime.from_yaml; `options` are those of the constructor."""
        return cls(load_run_config(path, overrides=overrides)[0], **options)

    async def __aenter__(self) -> AsyncRuntime:
        await self.ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def error(self) -> BaseException | None:
        """Why the engine takes no requests; None while it does."""
        return self._engine.error

    async def ready(self) -> None:
        """Return when the model is loaded.

        Raises:
            ConfigError, ModelError, BackendError: why it cannot be.
        """
        await self.call(lambda _: None)

    async def aclose(self) -> None:
        """End every request with finish_reason "abort", and free the model; twice is harmless."""
        await asyncio.get_running_loop().run_in_executor(None, self._stop)

    async def stream(
        self, prompt: Prompt | None = None, params: ParamsLike = None, **request: Any
    ) -> AsyncGenerator[Delta, None]:
        """Run one prompt and yield what is new; the last delta has `finished`.

        A reader that is slower than the engine gets fewer and longer deltas: those that wait for it
        are merged. Leaving the loop aborts the request (with `contextlib.aclosing` at once, else
        when the iterator is collected); so does cancelling the task.

        Args:
            prompt: text, a chat, or token ids.
            params: see Runtime.
            **request: `chat`, `token_ids`, `request_id`, `priority`, `cache_salt`, `tools`, as for
                Runtime.add_request.

        Raises:
            RequestError: a prompt or field that cannot be served.
            EngineError: the engine has stopped.
        """
        request = {"params": params, "arrival_s": time.perf_counter(), **request}
        enter = partial(_add_request, prompt, request)
        async with aclosing(self._stream(enter, request.get("request_id"))) as deltas:
            async for delta in deltas:
                yield delta

    async def submit(self, prepared: Prepared, **request: Any) -> AsyncGenerator[Delta, None]:
        """Run what `inputs` has prepared, so that the engine's thread need not; else as `stream`.

        Args:
            **request: as for Runtime.submit.
        """
        request = {"arrival_s": time.perf_counter(), **request}
        enter = partial(_submit, prepared, request)
        async with aclosing(self._stream(enter, request.get("request_id"))) as deltas:
            async for delta in deltas:
                yield delta

    async def _stream(
        self, enter: Callable[[Runtime], str], request_id: str | None
    ) -> AsyncGenerator[Delta, None]:
        box = Mailbox(asyncio.get_running_loop(), request_id)
        self._engine.add(box, enter)
        try:
            while True:
                for delta in merged(await box.take()):
                    yield delta
                    if delta.finished is not None:
                        return
        finally:
            self._engine.leave(box)

    async def generate(
        self, prompt: Prompt | None = None, params: ParamsLike = None, **request: Any
    ) -> Result:
        """Run one prompt to its end; for many, gather. Cancelling it aborts the request.

        Raises:
            RequestError, EngineError: as `stream`.
        """
        async with aclosing(self.stream(prompt, params, **request)) as deltas:
            async for delta in deltas:
                if delta.finished is not None:
                    return delta.finished
        raise AssertionError("a stream ends with its result")

    async def abort(self, request_id: str) -> None:
        """End a request now; its reader gets a last delta with finish_reason "abort"."""
        await asyncio.wrap_future(self._engine.abort(request_id))

    async def reset_prefix_cache(self) -> bool:
        """See Runtime.reset_prefix_cache."""
        return await self.call(lambda runtime: runtime.reset_prefix_cache())

    async def inputs(self) -> InputProcessor:
        """What encodes and checks requests; its methods may be called from any thread."""
        return await self.call(lambda runtime: runtime.inputs)

    async def stats(self) -> RuntimeStats:
        """Counters since the runtime was made."""
        return await self.call(lambda runtime: runtime.stats())

    async def call(self, function: Callable[[Runtime], T]) -> T:
        """Run a function of the runtime between two steps; what it raises is raised here only."""
        return await asyncio.wrap_future(self._engine.call(function))


def _add_request(prompt: Prompt | None, request: dict[str, Any], runtime: Runtime) -> str:
    return runtime.add_request(prompt, **request)


def _submit(prepared: Prepared, request: dict[str, Any], runtime: Runtime) -> str:
    return runtime.submit(prepared, **request)


def merged(deltas: list[Delta]) -> list[Delta]:
    """One delta for each sample; the one that finishes the request last."""
    if len(deltas) == 1:
        return deltas
    of_sample: dict[int, list[Delta]] = {}
    for delta in deltas:
        of_sample.setdefault(delta.index, []).append(delta)
    merged = [_joined(parts) for parts in of_sample.values()]
    return sorted(merged, key=lambda delta: delta.finished is not None)


def _joined(parts: list[Delta]) -> Delta:
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    wants_logprobs = any(part.logprobs is not None for part in parts)
    return Delta(
        request_id=last.request_id,
        index=last.index,
        text="".join(part.text for part in parts),
        token_ids=tuple(i for part in parts for i in part.token_ids),
        logprobs=tuple(p for part in parts for p in part.logprobs or ())
        if wants_logprobs
        else None,
        finish_reason=last.finish_reason,
        finished=last.finished,
    )
