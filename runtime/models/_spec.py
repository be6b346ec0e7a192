"""ModelSpec: what the rest of the runtime may know of a model before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runtime.models._rope_spec import RopeSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}


class StoredPart(NamedTuple):
    """Neighbouring rows of a matrix that a file stores in one type."""

    kind: str
    """GGUF's name of the type, in lower case."""

    start: int
    rows: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder's sizes and declared differences, validated; no tensors, no torch."""

    architecture: str
    """As in the checkpoint's config, such as LlamaForCausalLM."""

    dtype: str
    """float32, bfloat16 or float16: of weights, activations and KV."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Tokens that the model was made for: the default of max_model_len."""

    position_limit: int
    """The largest max_model_len that may be asked for."""

    windows: tuple[int | None, ...]
    """Sliding window of each layer, the token itself included; None is full attention."""

    rms_norm_eps: float
    rope: RopeSpec
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    quantization: str = "none"
    """int8: the matrices are cut to 8 bits at load."""

    linear_path: str = "auto"
    """How native kernels multiply by packed weights; "auto" is the fastest as measured."""

    q8_0: frozenset[str] = frozenset()
    """Matrices that stay as a GGUF file has them: 8-bit integers, a float16 scale for each 32
    inputs of an output."""

    stored: Mapping[str, tuple[StoredPart, ...]] = field(default_factory=dict)
    """Other matrices that stay as a GGUF file has them: their parts, from the first row on."""

    softcap: float = 0.0
    """tanh soft cap of attention scores; 0 is off."""

    eos_token_ids: tuple[int, ...] = ()
    eos_from: tuple[str, ...] = ()
    """Which file each of them was found in."""
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    """The sampling keys that the checkpoint's generation_config.json sets."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        per_layer = 2 * self.num_kv_heads * self.head_dim
        return self.num_layers * per_layer * DTYPE_BYTES[self.dtype]


def smaller_weights(spec: ModelSpec) -> str:
    """What makes these weights smaller, for a message: no key that is set so already."""
    keys = []
    if spec.dtype == "float32":
        keys.append("model.dtype to bfloat16 or float16")
    if spec.quantization == "none" and not spec.q8_0 and not spec.stored:
        keys.append("model.quantization to int8")
    return f"set {' or '.join(keys)}, or take a smaller model" if keys else "take a smaller model"
