"""The schedule trace of a runtime: whether there is one, and what its header says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.config import ObserveConfig, RuntimeConfig
from runtime.models import ModelSpec
from runtime.observe.steps import StepObserver
from runtime.observe.trace import Observers, TraceWriter
from runtime.runner import ModelRunner


def with_trace(
    config: ObserveConfig,
    observer: StepObserver | None,
    about: Callable[[], Mapping[str, Any]],
) -> StepObserver | None:
    """The observer, with a writer of the trace beside it where one is asked for.

    Args:
        about: makes what the header says of the run.

    Raises:
        ConfigError: the file cannot be written.
    """
    if config.trace is None:
        return observer
    writer = TraceWriter(
        config.trace, about(), max_bytes=config.trace_max_bytes, num_files=config.trace_files
    )
    return writer if observer is None else Observers(observer, writer)


def trace_facts(
    config: RuntimeConfig,
    spec: ModelSpec,
    runner: ModelRunner,
    *,
    device: torch.device,
    block_size: int,
    num_blocks: int,
    max_model_len: int,
) -> dict[str, Any]:
    """What ran, as far as it decides what a step does and costs."""
    graphs = runner.graph_stats()
    return {
        "model": {
            "path": config.model.path,
            "architecture": spec.architecture,
            "dtype": spec.dtype,
            "quantization": spec.quantization,
            "vocab_size": spec.vocab_size,
            "num_layers": spec.num_layers,
            "hidden_size": spec.hidden_size,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
        },
        "device": str(device),
        "threads": torch.get_num_threads(),
        "attention_backend": runner.backend.name,
        "graph_modes": {"decode": graphs.decode_mode, "mixed": graphs.mixed_mode},
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_model_len": max_model_len,
        "versions": {"torch": str(torch.__version__)},
        "config": config.model_dump(mode="json", exclude={"requests", "server"}),
    }
