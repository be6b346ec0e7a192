"""stepgraph's runtime: mixed-batch LLM inference over a paged KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.config import RuntimeConfig
    from runtime.data.params import SamplingParams, StructuredOutput
    from runtime.data.results import Completion, Delta, Result
    from runtime.errors import (
        BackendError,
        ConfigError,
        EngineError,
        ModelError,
        RequestError,
        StepgraphError,
    )
    from runtime.front.api import Runtime
    from runtime.front.async_engine import AsyncRuntime

__version__ = "0.1.0"
__all__ = [
    "AsyncRuntime",
    "BackendError",
    "Completion",
    "ConfigError",
    "Delta",
    "EngineError",
    "ModelError",
    "RequestError",
    "Result",
    "Runtime",
    "RuntimeConfig",
    "SamplingParams",
    "StepgraphError",
    "StructuredOutput",
]

_HOMES = {
    "AsyncRuntime": "runtime.front.async_engine",
    "BackendError": "runtime.errors",
    "Completion": "runtime.data.results",
    "ConfigError": "runtime.errors",
    "Delta": "runtime.data.results",
    "EngineError": "runtime.errors",
    "ModelError": "runtime.errors",
    "RequestError": "runtime.errors",
    "Result": "runtime.data.results",
    "Runtime": "runtime.front.api",
    "RuntimeConfig": "runtime.config",
    "SamplingParams": "runtime.data.params",
    "StepgraphError": "runtime.errors",
    "StructuredOutput": "runtime.data.params",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are used: `import runtime` alone stays free of torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'runtime' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
