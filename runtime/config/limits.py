"""Limits that span keys.

Checked at the door for what is written out, and by the engine again once all is known.
"""

from __future__ import annotations

from typing import Protocol

from runtime.config.problems import Problem, config_error
from runtime.config.sections import CacheConfig, GraphsConfig, ModelConfig, SchedulerConfig


class Limited(Protocol):
    """The sections whose keys bound each other, as a RuntimeConfig has them."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def scheduler(self) -> SchedulerConfig: ...
    @property
    def cache(self) -> CacheConfig: ...
    @property
    def graphs(self) -> GraphsConfig: ...


def blocks_for(max_model_len: int, block_size: int) -> int:
    """KV blocks of a request of max_model_len tokens; its last token needs no slot."""
    return max(1, -(-(max_model_len - 1) // block_size))


def limit_problems(
    config: Limited,
    *,
    max_model_len: int | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
) -> list[Problem]:
    """Contradictions between keys.

    What is not given is taken from the config; what is `auto` there is not checked.
    """
    scheduler = config.scheduler
    found = []
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        found.append(
            Problem(
                ("scheduler", "max_num_batched_tokens"),
                f"must be >= scheduler.max_num_seqs = {scheduler.max_num_seqs} (each running "
                f"request needs a token of the budget), got {scheduler.max_num_batched_tokens}",
            )
        )
    whole_prompts = _whole_prompts_because(config)
    if whole_prompts and scheduler.long_prefill_token_threshold:
        found.append(
            Problem(
                ("scheduler", "long_prefill_token_threshold"),
                f"must be 0 with {whole_prompts}: prompts run whole there, "
                f"got {scheduler.long_prefill_token_threshold}",
            )
        )
    if config.cache.num_blocks is not None and config.cache.memory != "auto":
        found.append(
            Problem(
                ("cache", "num_blocks"),
                f"must be null where cache.memory is given ({config.cache.memory} bytes): each "
                "alone says how large the pool is; set cache.memory to auto, or leave this out",
            )
        )
    above = [] if config.graphs.sizes == "auto" else config.graphs.sizes
    above = [size for size in above if size > scheduler.max_num_batched_tokens]
    if above:
        found.append(
            Problem(
                ("graphs", "sizes"),
                f"must be <= scheduler.max_num_batched_tokens = "
                f"{scheduler.max_num_batched_tokens}, got {above}: no step is larger",
            )
        )
    length = max_model_len or _explicit(config.model.max_model_len)
    if length is not None:
        found += _length_problems(
            config,
            length,
            block_size or _explicit(config.cache.block_size),
            num_blocks or config.cache.num_blocks,
        )
    return found


def check_limits(
    config: Limited,
    max_model_len: int | None = None,
    *,
    block_size: int | None = None,
    num_blocks: int | None = None,
) -> None:
    """For the engine, once the lengths and the pool are known.

    Args:
        num_blocks: usable blocks, the reserved ones excluded.

    Raises:
        ConfigError: naming each key and what is allowed.
    """
    found = limit_problems(
        config, max_model_len=max_model_len, block_size=block_size, num_blocks=num_blocks
    )
    if found:
        raise config_error(found)


def _length_problems(
    config: Limited, length: int, block_size: int | None, num_blocks: int | None
) -> list[Problem]:
    found = []
    budget = config.scheduler.max_num_batched_tokens
    whole_prompts = _whole_prompts_because(config)
    if whole_prompts and budget < length:
        found.append(
            Problem(
                ("scheduler", "max_num_batched_tokens"),
                f"must be >= max_model_len = {length} with {whole_prompts} (a prompt runs whole), "
                f"got {budget}; raise it, lower model.max_model_len, or use policy: mixed with "
                "chunked_prefill: true",
            )
        )
    if block_size and num_blocks and num_blocks < blocks_for(length, block_size):
        fits = num_blocks * block_size + 1
        found.append(
            Problem(
                ("model", "max_model_len"),
                f"must be <= {fits}: the KV pool has {num_blocks} blocks of {block_size} tokens; "
                f"one request of {length} tokens needs {blocks_for(length, block_size)} blocks; "
                "lower it, or raise cache.num_blocks or cache.memory",
            )
        )
    return found


def _whole_prompts_because(config: Limited) -> str:
    if config.scheduler.policy == "prefill_first":
        return "scheduler.policy: prefill_first"
    return "" if config.scheduler.chunked_prefill else "scheduler.chunked_prefill: false"


def _explicit(value: int | str) -> int | None:
    return value if isinstance(value, int) else None
