"""Reading the rotary settings of a config, in both spellings of transformers.

v4 writes `rope_theta` and `rope_scaling` (with "type" or "rope_type"); v5 writes `rope_parameters`
with everything in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import ModelError

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
DEFAULT_THETA = 10000.0
FREQUENCY_FACTORS = "frequency_factors"
"""Our own type, written when a GGUF is converted: one divisor for each frequency."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions turn; fields that a type does not use keep their defaults."""

    type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    original_max_position: int = 0
    """Context of the pretraining, in tokens (llama3, yarn)."""

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    """Scale of cosines and sines (yarn); None: from the factor."""

    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()


def read_rope(config: Mapping[str, Any], max_position: int, where: str) -> RopeSpec:
    """The rotary settings of a parsed config.json.

    Args:
        config: the whole config.
        max_position: its max_position_embeddings.
        where: the file, for messages.

    Raises:
        ModelError: unknown type, missing or malformed value, unsupported variant.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    values = _Values(config.get(key) or {}, f"{where}: {key}")
    type_ = values.get("rope_type") or values.get("type") or "default"
    if type_ not in (*ROPE_TYPES, FREQUENCY_FACTORS):
        raise ModelError(
            f"{values.where}: unsupported rope type {type_!r}; supported: {', '.join(ROPE_TYPES)}"
        )
    _refuse_partial(config, values)
    theta = values.number("rope_theta", config.get("rope_theta") or DEFAULT_THETA)
    if type_ in ("default", FREQUENCY_FACTORS):
        factors = values.get(FREQUENCY_FACTORS) or ()
        return RopeSpec(type_, theta, frequency_factors=tuple(float(f) for f in factors))
    if type_ in ("linear", "dynamic"):
        return RopeSpec(type_, theta, values.number("factor"))
    original = config.get("original_max_position_embeddings") or int(
        values.number("original_max_position_embeddings", max_position)
    )
    if type_ == "llama3":
        return RopeSpec(
            type_,
            theta,
            values.number("factor"),
            original,
            low_freq_factor=values.number("low_freq_factor"),
            high_freq_factor=values.number("high_freq_factor"),
        )
    return _yarn(values, theta, original, max_position)


def _yarn(values: _Values, theta: float, original: int, max_position: int) -> RopeSpec:
    attention_factor = values.get("attention_factor")
    return RopeSpec(
        "yarn",
        theta,
        values.number("factor", max_position / original),
        original,
        attention_factor=(None if attention_factor is None else values.number("attention_factor")),
        beta_fast=values.number("beta_fast", 32.0),
        beta_slow=values.number("beta_slow", 1.0),
        mscale=values.number("mscale", 0.0),
        mscale_all_dim=values.number("mscale_all_dim", 0.0),
        truncate=bool(values.get("truncate", True)),
    )


def _refuse_partial(config: Mapping[str, Any], values: _Values) -> None:
    partial = values.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelError(
            f"{values.where}: partial_rotary_factor {partial} is not supported; allowed: 1.0"
        )


class _Values:
    """The rope dictionary, with numbers checked as they are read."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise ModelError(f"{where} must be a mapping, not {values!r}")
        nested = [name for name, value in values.items() if isinstance(value, Mapping)]
        if nested:
            raise ModelError(
                f"{where}: settings by layer type ({', '.join(nested)}) are not supported; "
                "one setting for all layers is"
            )
        self._values = values
        self.where = where

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        """The value as a float; null counts as absent."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise ModelError(f"{self.where}: {name} must be a number above 0, not {value!r}")
        return float(value)
