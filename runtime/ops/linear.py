"""Projections and the embedding: parameters whose weight may be packed once it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.ops.linear_paths import paths_of
from runtime.ops.memory import WeightMemory
from runtime.ops.native import NativeOps, native_ops
from runtime.ops.weights import (
    INPUT_MULTIPLE,
    MOST_INT8_INPUTS,
    Int8Weight,
    Packable,
    PackedWeight,
    PlainWeight,
    Q8Weight,
    SplitWeight,
    StoredWeight,
    Weight,
    packed_kind,
    shape_of,
)


class Linear:
    """x @ weight.T + bias.

    Attributes:
        form: the weight, however it is kept.
        bias: [out] or None.
    """

    __slots__ = ("bias", "form")
    is_gated = False

    def __init__(self, weight: Tensor | Weight, bias: Tensor | None = None) -> None:
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

    bfloat16 and what is stored in fewer bits is packed on the CPU for the native kernels, in the
    order given; with `int8` every weight is cut to 8 bits. What no kernel serves stays in plain
    torch.

    Args:
        layers: each once, in the order of a step.
        path: how packed weights are multiplied; see `choose_paths`.
    """
    jobs = [
        _Job(layer, place, _packable(form)) for layer in layers for place, form in _parts(layer)
    ]
    kernels = native_ops() if any(job.weight is not None for job in jobs) else None
    if kernels is not None:
        _pack_all(kernels, jobs, int8=int8, path=path)
    if int8:
        for layer in layers:
            if not isinstance(layer.form, PackedWeight):
                layer.form = Int8Weight(layer.form.plain())


@dataclass(slots=True)
class _Job:
    layer: Linear
    place: int | None
    """Of a part of a `SplitWeight`."""

    weight: Packable | None
    """None: no kernel takes it."""

    @property
    def is_gated(self) -> bool:
        return self.layer.is_gated and self.place is None

    def put(self, form: Weight) -> None:
        """In place of the weight."""
        if self.place is None:
            self.layer.form = form
        else:
            assert isinstance(self.layer.form, SplitWeight)
            self.layer.form.parts[self.place] = form


def _pack_all(kernels: NativeOps, jobs: Sequence[_Job], *, int8: bool, path: str) -> None:
    size, inputs = 0, dict[str, list[int]]()
    for job in jobs:
        if job.weight is not None:
            kind, shape = packed_kind(job.weight, int8=int8), shape_of(job.weight)
            inputs.setdefault(kind, []).append(shape[1])
            size += WeightMemory.size_of(*kernels.panels_form(shape, kind, job.is_gated))
    memory, paths = WeightMemory(size), paths_of(kernels, inputs, path)
    for job in jobs:
        weight, job.weight = job.weight, None
        if weight is not None:
            own = paths[packed_kind(weight, int8=int8)]
            gated = job.is_gated
            job.put(PackedWeight(kernels, weight, memory, is_gated=gated, int8=int8, paths=own))


def _parts(layer: Linear) -> list[tuple[int | None, Weight]]:
    form = layer.form
    return list(enumerate(form.parts)) if isinstance(form, SplitWeight) else [(None, form)]


def _packable(form: Weight) -> Packable | None:
    """What the kernels can be given of it."""
    if isinstance(form, StoredWeight):
        fits = form.stored.device.type == "cpu" and form.dtype is torch.bfloat16
        return form if fits else None
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
