"""The decoder that the Llama family shares; its members differ by what their ModelSpec declares.

Nothing but parameters is kept. Attention is passed in: the runner binds it to a step, and a graph
mode may cut the forward wherever `attend` is called.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from runtime.models._interface import Attend
from runtime.models._rope import inverse_frequencies
from runtime.models._spec import ModelSpec
from runtime.models._weight_map import Slot, parameter_shapes, weight_map
from runtime.ops import (
    Linear,
    Rotation,
    add_rms_norm,
    head_rms_norm,
    rms_norm,
    rotary,
    rotation,
    silu_and_mul,
)


class Layer:
    """The parameters of one layer."""

    __slots__ = ("down", "gate_up", "head_norm", "input_norm", "mlp_norm", "output", "qkv")

    def __init__(self, parameters: dict[str, Tensor], prefix: str) -> None:
        def linear(name: str) -> Linear:
            bias = parameters.get(f"{prefix}{name}.bias")
            return Linear(parameters[f"{prefix}{name}.weight"], bias)

        self.input_norm = parameters[f"{prefix}input_norm.weight"]
        self.qkv = linear("qkv")
        self.head_norm = parameters.get(f"{prefix}head_norm.weight")
        self.output = linear("output")
        self.mlp_norm = parameters[f"{prefix}mlp_norm.weight"]
        self.gate_up = linear("gate_up")
        self.down = linear("down")


class Decoder:
    """A pre-norm decoder with rotary positions, grouped heads and a gated MLP.

    Attributes:
        spec: its sizes.
        parameters: every parameter by name; uninitialised until the loader has filled them.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self.parameters = {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, shape in parameter_shapes(spec).items()
        }
        self.layers = [Layer(self.parameters, f"layers.{i}.") for i in range(spec.num_layers)]
        self.embedding = self.parameters["embedding.weight"]
        self.head = Linear(self.parameters.get("head.weight", self.embedding))
        self.next_norms = [layer.input_norm for layer in self.layers[1:]]
        self.next_norms.append(self.parameters["norm.weight"])
        frequencies, self.rotation_scale = inverse_frequencies(spec.rope, spec.head_dim)
        self.inverse_frequencies = frequencies.to(device)
        self.num_qk_heads = spec.num_q_heads + spec.num_kv_heads

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """See DecoderModel."""
        eps = self.spec.rms_norm_eps
        residual = functional.embedding(input_ids, self.embedding)
        turn = rotation(
            positions, self.inverse_frequencies, self.rotation_scale, self.embedding.dtype
        )
        hidden = rms_norm(residual, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, hidden, turn)
            hidden = layer.output(attend(index, q, k, v))
            hidden = add_rms_norm(hidden, residual, layer.mlp_norm, eps)
            hidden = layer.down(silu_and_mul(layer.gate_up(hidden)))
            hidden = add_rms_norm(hidden, residual, self.next_norms[index], eps)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See DecoderModel."""
        return self.head(hidden)

    def _project(
        self, layer: Layer, hidden: Tensor, turn: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        qkv = layer.qkv(hidden).view(hidden.shape[0], -1, spec.head_dim)
        qk = qkv[:, : self.num_qk_heads]
        if layer.head_norm is not None:
            qk = head_rms_norm(qk, layer.head_norm, spec.rms_norm_eps)
        qk = rotary(qk, turn)
        return qk[:, : spec.num_q_heads], qk[:, spec.num_q_heads :], qkv[:, self.num_qk_heads :]

    def weight_map(self) -> dict[str, Slot]:
        """Each tensor of a Hugging Face checkpoint, and the rows of a parameter that it fills."""
        return weight_map(self.spec)
