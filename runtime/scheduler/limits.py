"""Limits under which every admitted request can run to its end: checked at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.data.request import Request
from runtime.errors import ConfigError, RequestError
from runtime.kv_cache import BlockPool

if TYPE_CHECKING:
    from runtime.config.sections import SchedulerConfig


def check_config(
    config: SchedulerConfig, block_size: int, num_blocks: int, max_model_len: int
) -> None:
    """Refuses a configuration under which some request could never be scheduled.

    Raises:
        ConfigError: naming the keys and what is allowed.
    """
    budget = config.max_num_batched_tokens
    if not config.chunked_prefill and budget < max_model_len:
        raise ConfigError(
            f"scheduler.max_num_batched_tokens: {budget} is less than model.max_model_len "
            f"{max_model_len}; with scheduler.chunked_prefill false a prompt runs whole, so it "
            f"must be at least {max_model_len}"
        )
    if not config.chunked_prefill and config.long_prefill_token_threshold:
        raise ConfigError(
            "scheduler.long_prefill_token_threshold: "
            f"{config.long_prefill_token_threshold} cuts prompts into chunks, which "
            "scheduler.chunked_prefill false forbids; set one of them back (0, true)"
        )
    # The last token of a request is never run, so it needs no slot.
    num_slots, num_needed = num_blocks * block_size, max_model_len - 1
    if num_slots < num_needed:
        raise ConfigError(
            f"cache.num_blocks: {num_blocks} blocks of {block_size} hold {num_slots} tokens, but "
            f"one request of model.max_model_len {max_model_len} needs {num_needed}; at least "
            f"{-(-num_needed // block_size)} blocks, or a max_model_len of at most {num_slots + 1}"
        )


def check_request(request: Request, max_model_len: int, pool: BlockPool) -> None:
    """Refuses a prompt that no step could ever hold.

    Raises:
        RequestError: with the lengths.
    """
    num_tokens = request.num_tokens
    if not num_tokens:
        raise RequestError("prompt", "must not be empty (0 tokens)")
    if num_tokens >= max_model_len:
        size = pool.block_size
        raise RequestError(
            "prompt",
            f"has {num_tokens} tokens ({-(-num_tokens // size)} KV blocks of {size}); at most "
            f"{max_model_len - 1} fit (max_model_len {max_model_len}, the pool has "
            f"{pool.num_usable_blocks} blocks)",
        )
