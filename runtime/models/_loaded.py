"""A model with its weights in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attention_backends import AttentionShape
from runtime.errors import ModelError
from runtime.models._decoder import Decoder
from runtime.models._interface import DecoderModel
from runtime.models._plugins import find_plugin
from runtime.models._spec import ModelSpec


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
        except RuntimeError as error:
            if "alloc" not in str(error) and not isinstance(error, torch.OutOfMemoryError):
                raise
            raise ModelError(
                f"the weights need {spec.weight_bytes / (1 << 20):.0f} MiB on {device}: {error}"
            ) from error
        fill(model)
        model.pack()
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
