"""The Hugging Face config that a GGUF header amounts to."""

from __future__ import annotations

from typing import Any

from runtime.errors import ModelError
from runtime.models._gguf_header import GgufHeader, TensorInfo
from runtime.models._rope_spec import FREQUENCY_FACTORS

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def gguf_config(header: GgufHeader) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config.json and generation_config.json that the header amounts to.

    Raises:
        ModelError: an architecture or a feature that is not supported, or a missing key.
    """
    read = _Keys(header)
    heads = read.integer("attention.head_count")
    width = read.integer("embedding_length")
    head_dim = read.optional("attention.key_length") or width // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if read.optional(key) not in (None, head_dim):
            raise ModelError(
                f"{header.path}: {read.prefix}.{key} {read.optional(key)} differs from the head "
                f"size {head_dim}, which is not supported"
            )
    window = read.optional("attention.sliding_window")
    architecture = ARCHITECTURES[read.prefix]
    if window and read.prefix == "llama":
        architecture = "MistralForCausalLM"
    config = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": read.tensor("token_embd.weight").shape[0],
        "hidden_size": width,
        "intermediate_size": read.integer("feed_forward_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.optional("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "max_position_embeddings": read.integer("context_length"),
        "rms_norm_eps": read.required("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "rope_parameters": _rope(read, header),
        "sliding_window": window,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
    }
    ids = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return config, {"eos_token_id": list(dict.fromkeys(i for i in ids if i is not None)) or None}


def _rope(read: _Keys, header: GgufHeader) -> dict[str, Any]:
    theta = read.optional("rope.freq_base") or 10000.0
    kind = read.optional("rope.scaling.type") or "none"
    factor = read.optional("rope.scaling.factor") or read.optional("rope.scale_linear") or 1.0
    if header.frequency_factors:
        return {
            "rope_type": FREQUENCY_FACTORS,
            "rope_theta": theta,
            FREQUENCY_FACTORS: list(header.frequency_factors),
        }
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    rope = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    original = read.optional("rope.scaling.original_context_length")
    if kind == "yarn" and original:
        rope["original_max_position_embeddings"] = original
    for key in ("attn_factor", "yarn_attn_factor", "yarn_log_multiplier", "yarn_ext_factor"):
        if read.optional(f"rope.scaling.{key}") not in (None, 0.0, 1.0):
            raise ModelError(f"{header.path}: {read.prefix}.rope.scaling.{key} is not supported")
    return rope


class _Keys:
    """The metadata of the file's architecture."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        metadata = header.metadata
        self.prefix = metadata.get("general.architecture")
        if self.prefix not in ARCHITECTURES:
            raise ModelError(
                f"{header.path}: unsupported GGUF architecture {self.prefix!r}; supported: "
                f"{', '.join(ARCHITECTURES)} (Mistral is stored as llama)"
            )
        if (metadata.get("split.count") or 1) > 1:
            raise ModelError(
                f"{header.path} is one part of a split GGUF; merge the parts into one file first"
            )
        if self.optional("expert_count"):
            raise ModelError(f"{header.path}: mixtures of experts are not supported")

    def optional(self, name: str) -> Any:
        return self._header.metadata.get(f"{self.prefix}.{name}")

    def required(self, name: str) -> Any:
        value = self.optional(name)
        if value is None:
            raise ModelError(f"{self._header.path}: the key {self.prefix}.{name} is missing")
        return value

    def integer(self, name: str) -> int:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(
                f"{self._header.path}: {self.prefix}.{name} must be an integer above 0, "
                f"not {value!r}"
            )
        return value

    def tensor(self, name: str) -> TensorInfo:
        if name not in self._header.tensors:
            raise ModelError(f"{self._header.path}: the tensor {name} is missing")
        return self._header.tensors[name]
