"""Out of memory while a runtime starts: which part there was no room for, and what to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attention_backends import is_out_of_memory
from graphs import GraphError
from runtime.errors import ConfigError

LOWER = {
    "buffers": "scheduler.max_num_seqs or model.max_model_len",
    "activations": "scheduler.max_num_batched_tokens",
    "workspaces": "scheduler.max_num_seqs, or take another attention.backend",
    "graphs": "the number of graphs.sizes, or set graphs.decode or graphs.mixed to eager",
}
"""What makes each part beside weights and KV pool smaller."""
_LOWER = {
    **LOWER,
    "KV pool": "cache.memory or cache.num_blocks",
    "smallest KV pool": f"cache.block_size, or for smaller buffers {LOWER['buffers']}",
}


@contextmanager
def explain_out_of_memory(part: str, beside: str = "") -> Iterator[None]:
    """Say of which part there was too much. What is told inside already is left as it is.

    Args:
        part: a key of LOWER, "KV pool", or "smallest KV pool", which others are measured beside;
            weights are told where they are loaded.
        beside: keys that make another part smaller, which stands in the way.

    Raises:
        ConfigError: in the place of an allocator's error, and of a capture's that had one.
    """
    try:
        yield
    except Exception as error:
        refused = error.__cause__ if isinstance(error, GraphError) else error
        if refused is None or not is_out_of_memory(refused):
            raise
        lower = f"{beside}, {_LOWER[part]}" if beside else _LOWER[part]
        raise ConfigError(f"out of memory for the {part}: lower {lower}. {error}") from error
