"""Inverse frequencies of each rope type; formulas as in transformers' modeling_rope_utils.

Dynamic NTK: transformers picks the base from the length that a sequence has at each forward, and
leaves earlier keys turned by older bases, so a result depends on how the prompt was cut. Keys of a
paged cache are shared between requests and chunks and must not depend on that. Up to
max_position_embeddings dynamic equals the plain rotation, exactly and however the prompt is cut;
longer contexts are refused (ModelSpec.position_limit).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runtime.models._rope_spec import FREQUENCY_FACTORS, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Radians per token of each dimension pair, [D/2] float32, and the scale of cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return plain / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.type == "yarn":
        return _yarn(plain, rope, head_dim), _yarn_scale(rope)
    if rope.type == FREQUENCY_FACTORS:
        return plain / torch.tensor(rope.frequency_factors), 1.0
    return plain, 1.0


def _llama3(plain: Tensor, rope: RopeSpec) -> Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    original, low, high = rope.original_max_position, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / plain
    scaled = plain / rope.factor
    is_long = wavelength > original / low
    is_between = ~is_long & ~(wavelength < original / high)
    result = torch.where(is_long, scaled, plain)
    if low == high:
        return result
    smooth = (original / wavelength - low) / (high - low)
    return torch.where(is_between, (1 - smooth) * scaled + smooth * plain, result)


def _yarn(plain: Tensor, rope: RopeSpec, head_dim: int) -> Tensor:
    """Dimensions that turn often are kept, slow ones divided by the factor, a ramp between."""

    def dimension_of(turns: float) -> float:
        ratio = math.log(rope.original_max_position / (turns * 2 * math.pi))
        return head_dim * ratio / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = (high - low) or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_scale(rope: RopeSpec) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * scale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)
