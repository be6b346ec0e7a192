"""Projections and the embedding: parameters whose weight may be packed once it is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.ops.linear_paths import paths_of
from runtime.ops.memory import WeightMemory
from runtime.ops.native import native_ops
from runtime.ops.weights import (
    INPUT_MULTIPLE,
    MOST_INT8_INPUTS,
    Int8Weight,
    PackedWeight,
    PlainWeight,
    Q8Weight,
    Weight,
    packed_type,
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

    def __init__(self, weight: Tensor | Q8Weight, bias: Tensor | None = None) -> None:
        self.form: Weight = PlainWeight(weight) if isinstance(weight, Tensor) else weight
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


def pack(layers: Sequence[Linear], *, int8: bool, path: str = "auto") -> None:
    """Bring the weights into the form that is fastest here, one after another, so that no more than
    one of them is held twice.

    bfloat16 and Q8_0 on the CPU are packed for the native kernels, in the order given; with `int8`
    every weight is cut to 8 bits. What no kernel serves stays in plain torch.

    Args:
        layers: each once, in the order of a step.
        path: how packed weights are multiplied; see `choose_paths`.
    """
    weights = [_packable(layer.form) for layer in layers]
    kernels = native_ops() if any(weight is not None for weight in weights) else None
    sizes = [
        _packed_bytes(weight, layer.is_gated, int8)
        for layer, weight in zip(layers, weights, strict=True)
        if weight is not None
    ]
    memory = WeightMemory(sum(sizes) if kernels else 0)
    paths = paths_of(kernels, _inputs(weights, int8), path) if kernels else {}
    for place, layer in enumerate(layers):
        weight, weights[place] = weights[place], None
        if kernels is not None and weight is not None:
            kind = packed_type(weight, int8=int8)
            layer.form = PackedWeight(
                *(kernels, weight, memory),
                is_gated=layer.is_gated,
                int8=int8,
                paths=paths[kind],
            )
        elif int8:
            layer.form = Int8Weight(layer.form.plain())


def _packable(form: Weight) -> Tensor | Q8Weight | None:
    """What the kernels can be given of it."""
    if isinstance(form, Q8Weight):
        fits = form.integers.device.type == "cpu" and form.dtype is torch.bfloat16
        return form if fits else None
    matrix = form.plain()
    fits = (
        matrix.device.type == "cpu"
        and matrix.dtype is torch.bfloat16
        and matrix.shape[1] % INPUT_MULTIPLE == 0
        and matrix.shape[1] <= MOST_INT8_INPUTS
    )
    return matrix if fits else None


def _inputs(
    weights: Sequence[Tensor | Q8Weight | None], int8: bool
) -> dict[torch.dtype, list[int]]:
    """Type of packed values -> inputs of each weight."""
    found: dict[torch.dtype, list[int]] = {}
    for weight in weights:
        if weight is not None:
            matrix = weight.integers if isinstance(weight, Q8Weight) else weight
            found.setdefault(packed_type(weight, int8=int8), []).append(matrix.shape[1])
    return found


def _packed_bytes(weight: Tensor | Q8Weight, is_gated: bool, int8: bool) -> int:
    matrix = weight.integers if isinstance(weight, Q8Weight) else weight
    dtype = packed_type(weight, int8=int8)
    shape = panels_shape((matrix.shape[0], matrix.shape[1]), dtype, is_gated)
    return WeightMemory.size_of(shape, dtype)
