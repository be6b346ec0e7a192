"""How many KV blocks fit: what the configuration asks for, inside what the device, or the machine
and the cgroup, leave free beside everything else."""

from __future__ import annotations

import logging
from typing import NamedTuple

import psutil
import torch

from attention_backends import NUM_RESERVED_BLOCKS
from runtime.config import RuntimeConfig, blocks_for, format_memory, parse_memory
from runtime.errors import ConfigError
from runtime.machine.cgroup import memory_headrooms
from runtime.models import ModelSpec
from runtime.runner.footprint import Footprint
from runtime.runner.out_of_memory import LOWER

log = logging.getLogger(__name__)

CPU_SHARE = 0.5
"""Of the free memory: activations, and whatever else runs on the machine, need the rest."""
CPU_MOST_BYTES = 4 << 30
"""Of a pool under `cache.memory: auto`: the machine is not this process's alone."""
CUDA_SHARE = 0.95
"""Of the free memory, for the pool and what was measured beside it: allocators lose a part."""


class _Room(NamedTuple):
    """What the pool may take."""

    free: int
    """bytes that can be taken at all, `beside` included"""
    share: float
    """of `free`, for the pool under `cache.memory: auto` and what stands beside it"""
    most: int
    """bytes of the pool under `cache.memory: auto`, whatever is free"""
    beside: int
    """bytes that other parts will take"""
    parts: str
    """says so in messages; "" where there are none"""


def size_kv_pool(
    config: RuntimeConfig,
    spec: ModelSpec,
    block_size: int,
    device: torch.device,
    footprint: Footprint | None = None,
    *,
    weights_to_come: int = 0,
) -> int:
    """Usable blocks of the pool, the reserved ones excluded.

    `cache.num_blocks`, else `cache.memory`; auto takes a share of the free memory, no more than
    `scheduler.max_num_seqs` requests of the longest length can use, and on the CPU no more than
    CPU_MOST_BYTES, save that a request of an explicit `model.max_model_len` may need more.

    Args:
        footprint: what the other parts will take, where it was measured. On a GPU, where it was
            not, the answer is the most that there can be.
        weights_to_come: bytes of the weights, where they are not loaded yet.

    Raises:
        ConfigError: not one block fits, or more was asked for than is free.
    """
    room = _room(footprint, device, weights_to_come)
    num_blocks = _num_blocks(config, spec, block_size, room)
    block_bytes = block_size * spec.kv_bytes_per_token
    _log_parts(num_blocks, block_size, block_bytes, footprint)
    return num_blocks


def _room(footprint: Footprint | None, device: torch.device, weights_to_come: int) -> _Room:
    if footprint is None:
        free = max(0, free_memory_bytes(device) - weights_to_come)
        parts = f" beside weights of {format_memory(weights_to_come)}" if weights_to_come else ""
        if device.type == "cuda":
            return _Room(free, CUDA_SHARE, free, 0, parts)
        return _Room(free, CPU_SHARE, CPU_MOST_BYTES, 0, parts)
    return _Room(
        footprint.free,
        CUDA_SHARE,
        footprint.free,
        footprint.beside_pool,
        _parts_of(footprint),
    )


def _num_blocks(config: RuntimeConfig, spec: ModelSpec, block_size: int, room: _Room) -> int:
    block_bytes = block_size * spec.kv_bytes_per_token
    cache = config.cache
    if cache.num_blocks is not None:
        _check_free("num_blocks", (cache.num_blocks + NUM_RESERVED_BLOCKS) * block_bytes, room)
        return cache.num_blocks
    if cache.memory == "auto":
        num_blocks = _auto_blocks(config, spec, block_size, room)
        granted = f"a share of the {format_memory(room.free)} that are free{room.parts}"
    else:
        try:
            memory = parse_memory(cache.memory)
        except ValueError as error:
            raise ConfigError(f"cache.memory: {error}") from None
        num_blocks = memory // block_bytes - NUM_RESERVED_BLOCKS
        granted = format_memory(memory)
        if num_blocks >= 1:
            _check_free("memory", memory, room)
    if num_blocks < 1:
        least = (1 + NUM_RESERVED_BLOCKS) * block_bytes
        raise ConfigError(
            f"cache.memory: {granted} hold no usable KV block: a block of {block_size} tokens "
            f"takes {format_memory(block_bytes)} and {NUM_RESERVED_BLOCKS} are reserved, so at "
            f"least {least} bytes ({format_memory(least)}) are needed"
        )
    return num_blocks


def _auto_blocks(config: RuntimeConfig, spec: ModelSpec, block_size: int, room: _Room) -> int:
    block_bytes = block_size * spec.kv_bytes_per_token
    fitting = (int(room.free * room.share) - room.beside) // block_bytes - NUM_RESERVED_BLOCKS
    wanted = config.model.max_model_len
    longest = wanted if isinstance(wanted, int) else spec.max_position
    of_one = blocks_for(longest, block_size)
    most = room.most // block_bytes - NUM_RESERVED_BLOCKS
    if isinstance(wanted, int):
        most = max(most, of_one)
    return min(fitting, most, config.scheduler.max_num_seqs * of_one)


def _check_free(key: str, needed: int, room: _Room) -> None:
    if needed + room.beside > room.free:
        raise ConfigError(
            f"cache.{key}: the KV pool would take {format_memory(needed)}, and "
            f"{format_memory(room.free)} are free here{room.parts}; lower it, or set "
            "cache.memory: auto"
        )


def _parts_of(footprint: Footprint) -> str:
    """Each part beside the pool, and what makes it smaller."""
    sizes = {part: getattr(footprint, part) for part in LOWER}
    listed = "; ".join(
        f"{part} take {format_memory(size)} (lower {LOWER[part]})"
        for part, size in sizes.items()
        if size
    )
    return f", of which {listed}" if listed else ""


def _log_parts(
    num_blocks: int, block_size: int, block_bytes: int, footprint: Footprint | None
) -> None:
    pool = (num_blocks + NUM_RESERVED_BLOCKS) * block_bytes
    said = f"KV pool: {num_blocks} blocks of {block_size} tokens, {format_memory(pool)}"
    if footprint is None:
        log.info("%s", said)
        return
    spare = footprint.free - footprint.beside_pool - pool
    parts = ", ".join(
        f"{part} {format_memory(getattr(footprint, part))}" for part in ("weights", *LOWER)
    )
    log.info("memory: %s, %s, spare %s", parts, said, format_memory(max(0, spare)))


def free_memory_bytes(device: torch.device) -> int:
    """Memory that can still be taken on the device; on the CPU, also within the cgroup's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([psutil.virtual_memory().available, *memory_headrooms()])
