"""stepgraph's runtime: mixed-batch LLM inference over a paged KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.api import Runtime
    from runtime.async_engine import AsyncRuntime
    from runtime.config import RuntimeConfig
    from runtime.params import SamplingParams, StructuredOutput
    from runtime.results import Completion, Delta, Result

__version__ = "0.1.0"
__all__ = [
    "AsyncRuntime",
    "Completion",
    "Delta",
    "Result",
    "Runtime",
    "RuntimeConfig",
    "SamplingParams",
    "StructuredOutput",
]

_HOMES = {
    "AsyncRuntime": "runtime.async_engine",
    "Completion": "runtime.results",
    "Delta": "runtime.results",
    "Result": "runtime.results",
    "Runtime": "runtime.api",
    "RuntimeConfig": "runtime.config",
    "SamplingParams": "runtime.params",
    "StructuredOutput": "runtime.params",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are used: `import runtime` alone stays free of torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'runtime' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
