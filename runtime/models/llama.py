"""Llama and those that kept its shape (SmolLM2): the decoder with nothing added."""

from runtime.models._decoder import Decoder

ARCHITECTURES = ("LlamaForCausalLM",)
TRAITS = {"qkv_bias": "attention_bias", "o_bias": "attention_bias", "mlp_bias": "mlp_bias"}


class Model(Decoder):
    """Llama 2, Llama 3.x, SmolLM2."""
