"""Out of memory while a runtime starts: which part there was no room for, and what to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attention_backends import is_out_of_memory
from runtime.errors import ConfigError

LOWER = {
    "buffers": "scheduler.max_num_seqs or model.max_model_len",
    "activations": "scheduler.max_num_batched_tokens",
    "workspaces": "scheduler.max_num_seqs, or take another attention.backend",
    "graphs": "the number of graphs.sizes, or set graphs.decode or graphs.mixed to eager",
}
"""What makes each part beside weights and KV pool smaller."""
_LOWER = {**LOWER, "KV pool": "cache.memory or cache.num_blocks"}


@contextmanager
def explain_out_of_memory(part: str) -> Iterator[None]:
    """Say of which part there was too much. What is told inside already is left as it is.

    Args:
        part: a key of LOWER, or "KV pool"; weights are told where they are loaded.

    Raises:
        ConfigError: in the place of an allocator's error.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"out of memory for the {part}: lower {_LOWER[part]}. {error}") from error
