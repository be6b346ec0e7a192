"""Qwen3 (dense): q and k heads are normed before the rotation."""

from runtime.models._decoder import Decoder

ARCHITECTURES = ("Qwen3ForCausalLM",)
TRAITS = {
    "qkv_bias": "attention_bias",
    "o_bias": "attention_bias",
    "qk_norm": True,
    "head_dim": 128,
    "window": "layer_types",
    "defaults": {"sliding_window": 4096, "max_window_layers": 28},
}


class Model(Decoder):
    """Qwen3."""
