"""The forms that a weight matrix can take: plain, 8-bit in plain torch, packed for the kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from runtime.ops.dispatch import embedding, run_native, silu_and_mul
from runtime.ops.memory import WeightMemory
from runtime.ops.native import NativeOps
from runtime.ops.native.linear import Panels

PANEL = 32
"""Outputs of a panel, see native/packing.h."""
HALF_PANEL = PANEL // 2
INPUT_MULTIPLE = 32
"""Inputs that packed weights come in: one tile."""
MOST_INT8_INPUTS = 65536
"""Above, the integer sums of the 8-bit kernel could overflow."""
LIBRARY_ROWS = 256
"""With AMX, from so many rows the unpacking of a weight costs less than oneDNN's better use of the
tiles gains."""


class Weight(Protocol):
    """A matrix [out, in], however it is kept."""

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, in] -> [T, out]."""

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, in] -> silu(gate) * up, [T, out / 2]; the gates are the first half of the outputs."""

    def rows(self, ids: Tensor) -> Tensor:
        """[T] ids -> [T, in]."""

    def plain(self) -> Tensor:
        """[out, in], in the type of the activations; made anew unless that is how it is kept."""

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""


class PlainWeight:
    """As loaded."""

    __slots__ = ("matrix",)

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, self.matrix, bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return silu_and_mul(self.linear(x, bias))

    def rows(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.matrix)

    def plain(self) -> Tensor:
        return self.matrix

    @property
    def num_bytes(self) -> int:
        return self.matrix.nbytes


class QuantizedWeight:
    """8-bit in plain torch: the twin of the packed one, and what serves where no kernel can.

    Symmetric, one scale an output: weight = scale * integer, the largest integer being 127.
    """

    __slots__ = ("dtype", "integers", "scales")

    def __init__(self, matrix: Tensor) -> None:
        self.dtype = matrix.dtype
        self.integers, self.scales = quantize(matrix)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, self.plain(), bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return silu_and_mul(self.linear(x, bias))

    def rows(self, ids: Tensor) -> Tensor:
        return (self.integers[ids] * self.scales[ids, None]).to(self.dtype)

    def plain(self) -> Tensor:
        return (self.integers * self.scales[:, None]).to(self.dtype)

    @property
    def num_bytes(self) -> int:
        return self.integers.nbytes + self.scales.nbytes


class PackedWeight:
    """In panels for the native kernels, bfloat16 or 8-bit."""

    __slots__ = ("_is_amx", "panels")

    def __init__(
        self,
        kernels: NativeOps,
        matrix: Tensor,
        memory: WeightMemory,
        *,
        is_gated: bool,
        int8: bool,
    ) -> None:
        self._is_amx = kernels.library.isa == "amx"
        shape, dtype = (matrix.shape[0], matrix.shape[1]), torch.int8 if int8 else torch.bfloat16
        values = memory.take(panels_shape(shape, dtype, is_gated), dtype)
        self.panels = Panels(values, shape, is_gated)
        if int8:
            num_places = len(values) * PANEL
            scales, sums = torch.zeros(num_places), torch.zeros(num_places, dtype=torch.int32)
            self.panels = self.panels._replace(scales=scales, sums=sums)
        kernels.pack(matrix, self.panels)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._is_for_library(x):
            return functional.linear(x, self.plain(), bias)
        return self._run(x, bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._is_for_library(x):
            return silu_and_mul(functional.linear(x, self.plain(), bias))
        return self._run(x, bias)

    def rows(self, ids: Tensor) -> Tensor:
        return run_native(
            "packed_embedding", ids, self.panels.values, self.panels.scales, self.panels.shape[1]
        )

    def plain(self) -> Tensor:
        return run_native("unpack", self.panels.values, self.panels)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.panels.tensors())

    def _is_for_library(self, x: Tensor) -> bool:
        return self._is_amx and len(x) >= LIBRARY_ROWS

    def _run(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        return run_native("linear", x, self.panels, bias)


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [out, in] int8 and scales [out] float32, symmetric, one scale an output."""
    values = matrix.float()
    scales = values.abs().amax(1) / 127
    integers = (values / torch.where(scales > 0, scales, 1)[:, None]).round_()
    return integers.to(torch.int8), scales


def panels_shape(
    shape: tuple[int, int], dtype: torch.dtype, is_gated: bool
) -> tuple[int, int, int, int]:
    """[panels, inputs / group, 32, group], a group being 4 bytes of one output."""
    outputs, inputs = shape
    group = 4 // dtype.itemsize
    panels = -(-outputs // 2 // HALF_PANEL) if is_gated else -(-outputs // PANEL)
    return panels, inputs // group, PANEL, group
