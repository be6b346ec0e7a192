"""The serving process: its socket, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from runtime.config import RunConfig
from runtime.front.async_engine import AsyncRuntime
from runtime.server.app import make_app
from runtime.server.keys import ApiKeys
from runtime.server.listen import BACKLOG, url_of
from runtime.server.service import Service, gate_of

log = logging.getLogger(__name__)
_LAST_WORDS_S = 5
"""What connections get to send what is left to say, after their requests have ended."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended."""

    signum: int
    num_cut_off: int
    """Requests that the end broke off."""
    was_loading: bool = False
    """The model was still being loaded, and may still be."""


def name_of(config: RunConfig) -> str:
    """What clients call the model."""
    given = config.server.model_name
    return given or os.path.basename(os.path.normpath(config.model.path)).removesuffix(".gguf")


async def serve(
    config: RunConfig,
    listener: socket.socket,
    keys: ApiKeys,
    make: Callable[..., AsyncRuntime] = AsyncRuntime,
) -> Ending:
    """Load the model and answer until a signal comes: SIGTERM lets running requests end within
    `server.drain_s`, SIGINT and a second signal do not.

    Raises:
        ConfigError, ModelError, BackendError: the model cannot be loaded.
    """
    with _signals() as signals:
        runtime = make(config, max_inflight=gate_of(config).capacity)
        told = asyncio.ensure_future(signals.get())
        loaded = asyncio.ensure_future(runtime.inputs())
        await asyncio.wait((told, loaded), return_when=asyncio.FIRST_COMPLETED)
        if not loaded.done():
            loaded.cancel()
            return Ending(told.result(), 0, was_loading=True)
        try:
            service = Service(config, runtime, await loaded, name_of(config))
            server = make_server(make_app(service, keys))
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            log.info("serving %s at %s", service.model_name, url_of(listener))
            signum = await told
            num_cut_off = await _drain(service, signum, signals)
            await runtime.aclose()
            server.should_exit = True
            await serving
            service.close()
            return Ending(signum, num_cut_off)
        finally:
            told.cancel()
            await runtime.aclose()


async def _drain(service: Service, signum: int, signals: asyncio.Queue[int]) -> int:
    """Let no request in, and those that run end; how many did not."""
    gate = service.gate
    gate.close()
    limit_s = service.config.server.drain_s if signum == signal.SIGTERM else 0.0
    if gate.num_requests and limit_s:
        log.info("%d requests may end within %g s", gate.num_requests, limit_s)
        tasks = [asyncio.ensure_future(x) for x in (gate.wait_empty(), signals.get())]
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return gate.num_requests


@contextmanager
def _signals() -> Iterator[asyncio.Queue[int]]:
    """Every SIGINT and SIGTERM that comes while the block runs."""
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[int] = asyncio.Queue()
    both = (signal.SIGINT, signal.SIGTERM)
    for signum in both:
        loop.add_signal_handler(signum, found.put_nowait, int(signum))
    try:
        yield found
    finally:
        for signum in both:
            loop.remove_signal_handler(signum)


class _Uvicorn(uvicorn.Server):
    """One that leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp) -> uvicorn.Server:
    """What speaks HTTP, until its `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    return _Uvicorn(config)
