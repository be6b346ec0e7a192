"""Mistral: Llama without biases, with one sliding window on every layer (null: none)."""

from runtime.models._decoder import Decoder

ARCHITECTURES = ("MistralForCausalLM",)
TRAITS = {"window": "all_layers", "defaults": {"sliding_window": 4096, "num_key_value_heads": 8}}


class Model(Decoder):
    """Mistral 7B and its kin."""
