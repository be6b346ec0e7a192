"""What serving takes beside weights and KV pool, measured before the pool is sized: a throwaway
runner with a pool of one block runs the largest step and captures its largest graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from attention_backends import NUM_RESERVED_BLOCKS, AttentionBackend
from runtime.models import weight_bytes
from runtime.runner.model_runner import ModelRunner
from runtime.runner.out_of_memory import explain_out_of_memory
from runtime.sampling import Sampler

if TYPE_CHECKING:
    from runtime.config import RuntimeConfig
    from runtime.models import LoadedModel


class MemoryMeter(Protocol):
    """Reads a device's memory; all in bytes."""

    def free(self) -> int:
        """What can still be taken, caches of the allocator given back."""

    def taken(self) -> int:
        """What this process has taken, caches given back."""

    def peak(self) -> int:
        """The most that it has had since `reset_peak`."""

    def reset_peak(self) -> None: ...


class CudaMeter:
    """What torch's allocator holds of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        self._give_back()
        return torch.cuda.mem_get_info(self._device)[0]

    def taken(self) -> int:
        self._give_back()
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device)

    def reset_peak(self) -> None:
        self._give_back()
        torch.cuda.reset_peak_memory_stats(self._device)

    def _give_back(self) -> None:
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of each part; `free` is what is left beside the weights for the other parts and the
    pool."""

    free: int
    weights: int
    buffers: int
    """step inputs, attention outputs, the sampler's tables"""
    activations: int
    """at the peak of the largest step, logits and sampling included"""
    workspaces: int
    """that the attention backend reserves for graphs"""
    graphs: int
    """of all buckets, estimated from trial captures"""

    @property
    def beside_pool(self) -> int:
        """What the pool must leave."""
        return self.buffers + self.activations + self.workspaces + self.graphs


def measure_footprint(
    config: RuntimeConfig,
    loaded: LoadedModel,
    backend: type[AttentionBackend],
    *,
    device: torch.device,
    block_size: int,
    meter: MemoryMeter | None = None,
    make_sampler: Callable[..., Sampler] = Sampler,
) -> Footprint:
    """Measure each part; the device is left as it was found, the weights on it.

    Args:
        backend: the attention backend's class.
        meter: of the device; a test gives its own.
        make_sampler: as the runner gets it.

    Raises:
        ConfigError: out of memory, with the part and what makes it smaller.
        BackendError: as ModelRunner does.
    """
    meter = meter or CudaMeter(device)
    wanted = config.model.max_model_len
    max_model_len = wanted if isinstance(wanted, int) else loaded.spec.max_position
    before = meter.taken()
    runner = ModelRunner(
        config,
        loaded,
        backend,
        device=device,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=1,
        make_sampler=make_sampler,
        capture=False,
    )
    pool = (1 + NUM_RESERVED_BLOCKS) * block_size * loaded.spec.kv_bytes_per_token
    try:
        held = meter.taken()
        meter.reset_peak()
        with explain_out_of_memory("activations"):
            runner.run_largest()
        activations = meter.peak() - held
        workspaces = runner.reserve_for_graphs()
        graphs = runner.estimate_graphs()
    finally:
        runner.close()
    del runner
    return Footprint(
        free=meter.free(),
        weights=weight_bytes(loaded.spec),
        buffers=max(0, held - before - pool),
        activations=max(0, activations),
        workspaces=workspaces,
        graphs=graphs,
    )
