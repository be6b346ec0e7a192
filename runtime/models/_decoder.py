"""The decoder that the Llama family shares; its members differ by what their ModelSpec declares.

Nothing but parameters is kept. Attention is passed in: the runner binds it to a step, and a graph
mode may cut the forward wherever `attend` is called.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from runtime.models._interface import Attend
from runtime.models._rope import inverse_frequencies
from runtime.models._spec import ModelSpec
from runtime.models._weight_map import (
    Slot,
    allocations,
    parameter_shapes,
    scales_of,
    stored_parts,
    weight_map,
)
from runtime.ops import (
    Embedding,
    GatedLinear,
    Linear,
    Q8Weight,
    Rotation,
    SplitWeight,
    StoredWeight,
    Weight,
    add_rms_norm,
    norm_and_rotary,
    pack,
    rms_norm,
    rotation,
)


class Layer:
    """The parameters of one layer."""

    __slots__ = ("down", "gate_up", "head_norm", "input_norm", "mlp_norm", "output", "qkv")

    def __init__(
        self, parameters: Mapping[str, Tensor], prefix: str, spec: ModelSpec, dtype: torch.dtype
    ) -> None:
        def linear(name: str, kind: type[Linear] = Linear) -> Linear:
            bias = parameters.get(f"{prefix}{name}.bias")
            return kind(_weight(parameters, f"{prefix}{name}.weight", spec, dtype), bias)

        self.input_norm = parameters[f"{prefix}input_norm.weight"]
        self.qkv = linear("qkv")
        self.head_norm = parameters.get(f"{prefix}head_norm.weight")
        self.output = linear("output")
        self.mlp_norm = parameters[f"{prefix}mlp_norm.weight"]
        self.gate_up = linear("gate_up", GatedLinear)
        self.down = linear("down")

    def linears(self) -> dict[str, Linear]:
        """In the order of a step, by the names of their parameters."""
        return {name: getattr(self, name) for name in ("qkv", "output", "gate_up", "down")}


def _weight(
    parameters: Mapping[str, Tensor], name: str, spec: ModelSpec, dtype: torch.dtype
) -> Tensor | Weight:
    """A matrix that is not packed yet."""
    parts = [
        StoredWeight(parameters[part], stored.kind, dtype)
        for part, stored in stored_parts(spec, name).items()
    ]
    if parts:
        return parts[0] if len(parts) == 1 else SplitWeight(parts)
    scales = parameters.get(scales_of(name))
    return parameters[name] if scales is None else Q8Weight(parameters[name], scales, dtype)


class Decoder:
    """A pre-norm decoder with rotary positions, grouped heads and a gated MLP.

    Attributes:
        spec: its sizes.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        """The parameters are uninitialised: the loader fills them, then calls `pack`."""
        self.spec = spec
        self._dtype = dtype
        self._loaded = {
            name: torch.empty(shape, dtype=getattr(torch, kind), device=device)
            for name, (shape, kind) in allocations(spec).items()
        }
        self.layers = [
            Layer(self._loaded, f"layers.{i}.", spec, dtype) for i in range(spec.num_layers)
        ]
        table = Linear(_weight(self._loaded, "embedding.weight", spec, dtype))
        self.embedding = Embedding(table)
        head = "embedding.weight" if spec.tie_embeddings else "head.weight"
        self.head = table
        if not spec.tie_embeddings:
            self.head = Linear(_weight(self._loaded, head, spec, dtype))
        self.next_norms = [layer.input_norm for layer in self.layers[1:]]
        self.next_norms.append(self._loaded["norm.weight"])
        frequencies, self.rotation_scale = inverse_frequencies(spec.rope, spec.head_dim)
        self.inverse_frequencies = frequencies.to(device)
        self.num_qk_heads = spec.num_q_heads + spec.num_kv_heads
        self._linears = {
            f"layers.{i}.{name}.weight": linear
            for i, layer in enumerate(self.layers)
            for name, linear in layer.linears().items()
        }
        if "embedding.weight" in spec.q8_0 or "embedding.weight" in spec.stored:
            self._linears["embedding.weight"] = table
        self._linears[head] = self.head

    @property
    def loaded(self) -> Mapping[str, Tensor]:
        """What the loader fills, and what of it `pack` left: see `allocations`."""
        return self._loaded

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by name, plain; what is kept in another form is widened for the call."""
        return {
            name: self._linears[name].form.plain() if name in self._linears else self._loaded[name]
            for name in parameter_shapes(self.spec)
        }

    def pack(self) -> None:
        """Bring the filled weights into the form that they are computed with; only that is kept."""
        for name in self._linears:
            for tensor in (name, scales_of(name), *stored_parts(self.spec, name)):
                self._loaded.pop(tensor, None)
        pack(
            list(self._linears.values()),
            int8=self.spec.quantization == "int8",
            path=self.spec.linear_path,
        )

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """See DecoderModel."""
        eps = self.spec.rms_norm_eps
        residual = self.embedding(input_ids)
        turn = rotation(positions, self.inverse_frequencies, self.rotation_scale, self._dtype)
        hidden = rms_norm(residual, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, hidden, turn)
            hidden = layer.output(attend(index, q, k, v))
            hidden = add_rms_norm(hidden, residual, layer.mlp_norm, eps)
            hidden = layer.down(layer.gate_up(hidden))
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
        qk = norm_and_rotary(qk, turn, layer.head_norm, spec.rms_norm_eps)
        return qk[:, : spec.num_q_heads], qk[:, spec.num_q_heads :], qkv[:, self.num_qk_heads :]

    def weight_map(self) -> dict[str, Slot]:
        """Each tensor of a Hugging Face checkpoint, and the rows of a parameter that it fills."""
        return weight_map(self.spec)
