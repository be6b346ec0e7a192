"""Qwen2 and Qwen2.5: biases on q, k and v; a sliding window on the upper layers, if switched on."""

from runtime.models._decoder import Decoder

ARCHITECTURES = ("Qwen2ForCausalLM",)
TRAITS = {
    "qkv_bias": True,
    "window": "layer_types",
    "defaults": {"sliding_window": 4096, "max_window_layers": 28},
}


class Model(Decoder):
    """Qwen2."""
