"""Service: what all routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from runtime.config import RunConfig
from runtime.front.async_engine import AsyncRuntime
from runtime.front.input_processor import InputProcessor
from runtime.server.errors import ApiError
from runtime.server.gate import Gate
from runtime.server.logprobs import TokenTexts
from runtime.server.metrics import Metrics
from runtime.server.tool_parsers import parser_of_template

T = TypeVar("T")
TEXT_THREADS = 2
"""That tokenise, render templates and compile grammars, beside event loop and engine."""


class Service:
    """One loaded model, its door, and its numbers.

    Args:
        inputs: of the runtime.
        model_name: what clients call it.
    """

    def __init__(
        self, config: RunConfig, runtime: AsyncRuntime, inputs: InputProcessor, model_name: str
    ) -> None:
        self.config, self.runtime, self.inputs = config, runtime, inputs
        self.model_name = model_name
        self.tool_parser = _tool_parser(config, inputs)
        self.created = int(time.time())
        self.gate = gate_of(config)
        self.metrics = Metrics(model_name)
        self.texts = TokenTexts(inputs.tokenizer)
        self._pool = ThreadPoolExecutor(TEXT_THREADS, "stepgraph-text")

    async def on_text_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run what would hold up the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *args))

    def check_model(self, name: str | None) -> None:
        """Raises ApiError: 404 for another name; none at all is this one."""
        if name is not None and name != self.model_name:
            raise ApiError(
                404,
                f"model: {name!r:.80} is not served here; {self.model_name!r} is",
                param="model",
                code="model_not_found",
            )

    def check_alive(self) -> None:
        """Raises ApiError: 503 where the engine has stopped or the server ends."""
        self.gate.check_open()
        if self.runtime.error is not None:
            raise ApiError(503, str(self.runtime.error), code="engine_stopped")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _tool_parser(config: RunConfig, inputs: InputProcessor) -> str | None:
    """How the model writes calls of tools, by the configuration or its chat template."""
    if config.server.tool_parser != "auto":
        return config.server.tool_parser
    template = inputs.tokenizer.tool_template if inputs.tokenizer else None
    return parser_of_template(template) if template else None


def gate_of(config: RunConfig) -> Gate:
    return Gate(config.scheduler.max_num_seqs, config.server.max_queued)
