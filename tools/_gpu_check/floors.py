"""The least time of a step: bytes that must move, operations that must be done."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runtime.models import ModelSpec
from runtime.models._spec import DTYPE_BYTES
from runtime.models._weight_map import parameter_shapes
from tools._gpu_check.ceilings import Ceilings
from tools._steps import Part


def step_bytes(spec: ModelSpec, parts: Sequence[Part]) -> int:
    """Each weight once, the K/V of every request once, and the logits."""
    item = DTYPE_BYTES[spec.dtype]
    keys = sum(part.num_computed + part.num_scheduled for part in parts)
    tokens = sum(part.num_scheduled for part in parts)
    sampled = sum(part.samples for part in parts)
    weights = sum(
        math.prod(shape) for name, shape in parameter_shapes(spec).items() if _is_read(name, spec)
    )
    return (
        item * (weights + tokens * spec.hidden_size + sampled * spec.vocab_size)
        + keys * spec.kv_bytes_per_token
    )


def step_ops(spec: ModelSpec, parts: Sequence[Part]) -> int:
    """Matrix products, the causal half of attention's included; a multiply-add is two."""
    tokens = sum(part.num_scheduled for part in parts)
    sampled = sum(part.samples for part in parts)
    linear = sum(
        math.prod(shape)
        for name, shape in parameter_shapes(spec).items()
        if name.startswith("layers.") and len(shape) == 2 and "norm" not in name
    )
    pairs = sum(
        part.num_scheduled * part.num_computed + part.num_scheduled * (part.num_scheduled + 1) // 2
        for part in parts
    )
    attention = 4 * pairs * spec.num_q_heads * spec.head_dim * spec.num_layers
    return 2 * linear * tokens + attention + 2 * sampled * spec.vocab_size * spec.hidden_size


def floor_ms(spec: ModelSpec, parts: Sequence[Part], ceilings: Ceilings) -> float:
    """The larger of the two times."""
    return max(
        step_bytes(spec, parts) / ceilings.bytes_per_ms,
        step_ops(spec, parts) / ceilings.ops_per_ms,
    )


def _is_read(name: str, spec: ModelSpec) -> bool:
    """The embedding is a look-up, save where it is the head too."""
    return name != "embedding.weight" or spec.tie_embeddings
