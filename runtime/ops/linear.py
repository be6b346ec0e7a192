"""Projections and the embedding: parameters whose weight may be packed once it is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.ops.memory import WeightMemory
from runtime.ops.native import NativeOps, native_ops
from runtime.ops.weights import (
    INPUT_MULTIPLE,
    MOST_INT8_INPUTS,
    PackedWeight,
    PlainWeight,
    QuantizedWeight,
    Weight,
    panels_shape,
)


class Linear:
    """x @ weight.T + bias.

    Attributes:
        form: the weight, however it is kept.
        bias: [out] or None.
    """

    __slots__ = ("bias", "form")
    is_gated = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.form: Weight = PlainWeight(weight)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out], in x's type."""
        return self.form.linear(x, self.bias)


class GatedLinear(Linear):
    """silu(gate) * up of a fused projection, gates first."""

    __slots__ = ()
    is_gated = True

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out / 2], in x's type."""
        return self.form.gated(x, self.bias)


class Embedding:
    """Rows of a table, which may be the weight of a projection too (tied embeddings)."""

    __slots__ = ("_linear",)

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, ids: Tensor) -> Tensor:
        """[T] int32 or int64 ids -> [T, width]."""
        return self._linear.form.rows(ids)


def pack(layers: Sequence[Linear], *, int8: bool) -> None:
    """Bring the weights into the form that is fastest here, one after another, so that no more than
    one of them is held twice.

    bfloat16 on the CPU is packed for the native kernels, in the order given; with `int8` every
    weight is cut to 8 bits. What no kernel serves stays in plain torch.

    Args:
        layers: each once, in the order of a step.
    """
    packable = [layer for layer in layers if _can_pack(layer)]
    kernels = native_ops() if packable else None
    if kernels is None:
        packable = []
    dtype = torch.int8 if int8 else torch.bfloat16
    sizes = [
        WeightMemory.size_of(panels_shape(_shape(layer), dtype, layer.is_gated), dtype)
        for layer in packable
    ]
    memory = WeightMemory(sum(sizes))
    chosen = {id(layer) for layer in packable}
    for layer in layers:
        if id(layer) in chosen:
            assert kernels is not None
            _pack(layer, kernels, memory, int8)
        elif int8:
            layer.form = QuantizedWeight(layer.form.plain())


def _pack(layer: Linear, kernels: NativeOps, memory: WeightMemory, int8: bool) -> None:
    matrix = layer.form.plain()
    layer.form = PackedWeight(kernels, matrix, memory, is_gated=layer.is_gated, int8=int8)


def _can_pack(layer: Linear) -> bool:
    matrix = layer.form.plain()
    return (
        matrix.device.type == "cpu"
        and matrix.dtype is torch.bfloat16
        and matrix.shape[1] % INPUT_MULTIPLE == 0
        and matrix.shape[1] <= MOST_INT8_INPUTS
    )


def _shape(layer: Linear) -> tuple[int, int]:
    matrix = layer.form.plain()
    return matrix.shape[0], matrix.shape[1]
