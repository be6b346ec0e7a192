"""From a SchedulerOutput to the tokens it gives: request rows, the batch, the forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.runner.backend import choose_backend, choose_backends
from runtime.runner.footprint import Footprint, measure_footprint
from runtime.runner.graph_setup import check_modes
from runtime.runner.model_runner import ModelRunner

if TYPE_CHECKING:
    from runtime.runner.kv_memory import free_memory_bytes, size_kv_pool

__all__ = [
    "Footprint",
    "ModelRunner",
    "check_modes",
    "choose_backend",
    "choose_backends",
    "free_memory_bytes",
    "measure_footprint",
    "size_kv_pool",
]


def __getattr__(name: str) -> Any:
    """What reads the configuration comes when it is asked for: the runner alone needs torch."""
    if name in ("free_memory_bytes", "size_kv_pool"):
        from runtime.runner import kv_memory

        return getattr(kv_memory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
