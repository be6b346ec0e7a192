"""A model with its weights in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attention_backends import AttentionShape, is_out_of_memory
from runtime.errors import ModelError
from runtime.models._decoder import Decoder
from runtime.models._interface import DecoderModel
from runtime.models._plugins import find_plugin
from runtime.models._spec import ModelSpec, smaller_weights
from runtime.models._weight_map import weight_bytes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the runner runs."""

    model: DecoderModel
    spec: ModelSpec
    attention_shapes: list[AttentionShape]
    """One for each layer."""

    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights, activations and KV."""
        return torch_dtype(self.spec)


def torch_dtype(spec: ModelSpec) -> torch.dtype:
    """The spec's type as torch's."""
    return getattr(torch, spec.dtype)


def build(spec: ModelSpec, device: torch.device, fill: Callable[[Decoder], None]) -> LoadedModel:
    """Allocate the plug-in's model on the device, fill its parameters and pack them.

    Raises:
        ModelError: it does not fit in memory, or `fill` refuses the weights.
    """
    model_class = find_plugin(spec.architecture, spec.architecture).model_class()
    with torch.no_grad():
        try:
            model = model_class(spec, torch_dtype(spec), device)
            fill(model)
            model.pack()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                f"out of memory for the weights, which take {weight_bytes(spec) / (1 << 20):.0f} "
                f"MiB on {device}: {smaller_weights(spec)}, or free memory there. {error}"
            ) from error
    return LoadedModel(model, spec, attention_shapes(spec), device)


def attention_shapes(spec: ModelSpec) -> list[AttentionShape]:
    """What each layer asks of an attention backend."""
    dtype = torch_dtype(spec)
    return [
        AttentionShape(
            num_q_heads=spec.num_q_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            kv_dtype=dtype,
            scale=spec.head_dim**-0.5,
            window=window,
            softcap=spec.softcap,
        )
        for window in spec.windows
    ]
