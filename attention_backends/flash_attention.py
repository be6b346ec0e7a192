"""FlashAttention 3 where the chip is Hopper and it is installed, else FlashAttention 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from attention_backends._flash_attention_2 import FlashAttention2, Plan2
from attention_backends._flash_attention_3 import FlashAttention3, Plan3
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
)
from attention_backends._nhd import allocate_kv

VERSIONS: tuple[type[FlashAttention3], type[FlashAttention2]] = (FlashAttention3, FlashAttention2)
"""The preferred one first."""
MAX_HEAD_DIM = 256


class Backend:
    """See `AttentionBackend`. One version serves all layers."""

    name: ClassVar[str] = "flash_attention"

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        """Raises ValueError with every version's reason where none serves every shape here."""
        self._shapes = list(shapes)
        self._block_size = block_size
        self._device = device
        version, reason = _first_able(self._shapes, block_size, device)
        if version is None:
            raise ValueError(f"flash_attention: {reason}")
        self._version = version(block_size)

    @classmethod
    def preference(cls, device: torch.device) -> int:
        """Version 3 goes before FlashInfer, version 2 behind it: that takes only blocks of 256
        tokens, and a graph for each class of lengths."""
        return 15 if FlashAttention3.refuse_device(device) else 30

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        version, reason = _first_able([shape], block_size, device)
        if version is None:
            # the block size with which FlashAttention 2 might do
            size = FlashAttention2.preferred_block_size
            fits, _ = _first_able([shape], size, device)
            preferred = size if fits else FlashAttention3.preferred_block_size
            return Support(False, reason, preferred_block_size=preferred)
        return Support(
            True,
            graph=version.graph,
            block_size_multiple=version.block_size_multiple,
            preferred_block_size=version.preferred_block_size,
            bucketed_kv=version.bucketed_kv,
        )

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        """Zeroed: FlashAttention 3 multiplies what lies behind the last key by zero, so every slot
        must stay finite."""
        return allocate_kv(self._shapes, num_blocks, self._block_size, self._device)

    def plan(self, batch: AttentionBatch) -> Plan2 | Plan3:
        return self._version.plan(batch)

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: Plan2 | Plan3) -> None:
        self._version.attend(self._shapes[layer], q, kv, out, plan)

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        """Nothing to allocate: partial results live in the graph's own pool.

        Raises:
            ValueError: a bucket that the version cannot be captured for.
        """
        ragged = any(bucket.kind == "ragged" for bucket in buckets)
        if ragged and self._version.graph < GraphSupport.RAGGED:
            raise ValueError("flash_attention: FlashAttention 2 cannot be captured in ragged steps")
        return 0

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> Plan2 | Plan3:
        return self._version.open_bucket(bucket, batch)

    def refresh(self, plan: Plan2 | Plan3, batch: AttentionBatch) -> None:
        self._version.refresh(plan, batch)


def _first_able(
    shapes: Sequence[AttentionShape], block_size: int, device: torch.device
) -> tuple[type[FlashAttention3] | type[FlashAttention2] | None, str]:
    """The first version that serves all shapes, or every version's reason."""
    distinct = list(dict.fromkeys(shapes))
    if reason := next(filter(None, map(_refuse_shape, distinct)), ""):
        return None, reason if device.type == "cuda" else f"needs an NVIDIA GPU; {reason}"
    reasons = []
    for version in VERSIONS:
        answers = (version.refuse(shape, block_size, device) for shape in distinct)
        if not (reason := next(filter(None, answers), "")):
            return version, ""
        reasons.append(reason)
    return None, "; ".join(reasons)


def _refuse_shape(shape: AttentionShape) -> str:
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"dtype {shape.dtype} is not supported: float16 or bfloat16"
    if shape.kv_dtype != shape.dtype:
        return f"the cache must hold the model's {shape.dtype}, not {shape.kv_dtype}"
    if shape.head_dim > MAX_HEAD_DIM or shape.head_dim % 8:
        return f"head_dim {shape.head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}"
    if shape.num_q_heads % shape.num_kv_heads:
        return f"{shape.num_q_heads} query heads do not divide among {shape.num_kv_heads} K/V heads"
    return ""
