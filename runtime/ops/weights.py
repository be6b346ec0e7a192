"""The forms that a weight matrix can take: plain, 8-bit in plain torch, packed for the kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from runtime.ops.dispatch import embedding, run_native, silu_and_mul
from runtime.ops.memory import WeightMemory
from runtime.ops.native import NativeOps
from runtime.ops.native.linear import PANEL, Panels
from runtime.ops.native.paths import Paths

HALF_PANEL = PANEL // 2
INPUT_MULTIPLE = 32
"""Inputs that packed weights come in: one tile."""
MOST_INT8_INPUTS = 65536
"""Above, the integer sums of the 8-bit kernel could overflow."""
BLOCK_INPUTS = 32
"""Inputs of an output that share a scale in Q8_0; `models/_weight_map.py` has it too, which imports
no torch."""
PACKED_BLOCK_BYTES = PANEL * (BLOCK_INPUTS + 2)
"""Of a panel's outputs: an integer for each input, and a float16 scale."""
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


class EightBitWeight:
    """8-bit in plain torch: the twin of the packed one, and what serves where no kernel can.

    weight = scale * integer, a scale for each `in / scales.shape[1]` inputs of an output. Widened
    at each call.
    """

    __slots__ = ("dtype", "integers", "scales")

    def __init__(self, integers: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        """
        Args:
            integers: [out, in] int8.
            scales: [out, scales of an output].
            dtype: of the activations.
        """
        self.integers, self.scales, self.dtype = integers, scales, dtype

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, self.plain(), bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return silu_and_mul(self.linear(x, bias))

    def rows(self, ids: Tensor) -> Tensor:
        return self._widened(self.integers[ids], self.scales[ids])

    def plain(self) -> Tensor:
        return self._widened(self.integers, self.scales)

    @property
    def num_bytes(self) -> int:
        return self.integers.nbytes + self.scales.nbytes

    def _widened(self, integers: Tensor, scales: Tensor) -> Tensor:
        shared = integers.shape[1] // scales.shape[1]
        blocks = integers.view(*scales.shape, shared) * scales.float()[:, :, None]
        return blocks.flatten(1).to(self.dtype)


class Int8Weight(EightBitWeight):
    """Cut to 8 bits here: symmetric, one scale an output, the largest integer being 127."""

    __slots__ = ()

    def __init__(self, matrix: Tensor) -> None:
        integers, scales = quantize(matrix)
        super().__init__(integers, scales[:, None], matrix.dtype)


class Q8Weight(EightBitWeight):
    """Q8_0, as a GGUF file stores it: float16 scales, [out, in / 32]."""

    __slots__ = ()


class PackedWeight:
    """In panels for the native kernels: bfloat16, 8-bit, or Q8_0."""

    __slots__ = ("panels", "paths")

    def __init__(
        self,
        kernels: NativeOps,
        weight: Tensor | Q8Weight,
        memory: WeightMemory,
        *,
        is_gated: bool,
        int8: bool = False,
        paths: Paths = Paths(),  # noqa: B008  # immutable
    ) -> None:
        """
        Args:
            weight: [out, in] bfloat16, or what stays in Q8_0.
            int8: cut a bfloat16 weight to 8 bits.
            paths: which kernels multiply.
        """
        self.paths = paths
        dtype = packed_type(weight, int8=int8)
        matrix = weight.integers if isinstance(weight, Q8Weight) else weight
        shape = (matrix.shape[0], matrix.shape[1])
        values = memory.take(panels_shape(shape, dtype, is_gated), dtype)
        self.panels = Panels(values, shape, is_gated)
        if dtype is torch.int8:
            num_places = len(values) * PANEL
            scales, sums = torch.zeros(num_places), torch.zeros(num_places, dtype=torch.int32)
            self.panels = self.panels._replace(scales=scales, sums=sums)
        kernels.pack(matrix, self.panels, weight.scales if isinstance(weight, Q8Weight) else None)

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
        return self.paths.tiles_from is not None and len(x) >= LIBRARY_ROWS

    def _run(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        return run_native("linear", x, self.panels, bias, self.paths.of(len(x)))


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [out, in] int8 and scales [out] float32, symmetric, one scale an output."""
    values = matrix.float()
    scales = values.abs().amax(1) / 127
    integers = (values / torch.where(scales > 0, scales, 1)[:, None]).round_()
    return integers.to(torch.int8), scales


def packed_type(weight: Tensor | Q8Weight, *, int8: bool) -> torch.dtype:
    """Of the panels: bfloat16, int8, or for Q8_0 uint8."""
    if isinstance(weight, Q8Weight):
        return torch.uint8
    return torch.int8 if int8 else torch.bfloat16


def panels_shape(shape: tuple[int, int], dtype: torch.dtype, is_gated: bool) -> tuple[int, ...]:
    """[panels, inputs / group, 32, group], a group being 4 bytes of one output; of Q8_0
    [panels, inputs / 32, bytes]."""
    outputs, inputs = shape
    panels = -(-outputs // 2 // HALF_PANEL) if is_gated else -(-outputs // PANEL)
    if dtype is torch.uint8:
        return panels, inputs // BLOCK_INPUTS, PACKED_BLOCK_BYTES
    group = 4 // dtype.itemsize
    return panels, inputs // group, PANEL, group
