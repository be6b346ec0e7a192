"""The forms that a weight matrix can take: plain, 8-bit in plain torch, packed for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from runtime.ops.dispatch import embedding, run_native, silu_and_mul
from runtime.ops.memory import WeightMemory
from runtime.ops.native import NativeOps
from runtime.ops.native.linear import PANEL, Panels
from runtime.ops.native.paths import Paths

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


class _Widened:
    """A weight that is widened at each call: the twin of a packed one, and what serves where no
    kernel can."""

    __slots__ = ()

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, self.plain(), bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return silu_and_mul(self.linear(x, bias))

    def plain(self) -> Tensor:
        raise NotImplementedError


class EightBitWeight(_Widened):
    """weight = scale * integer, a scale for each `in / scales.shape[1]` inputs of an output."""

    __slots__ = ("dtype", "integers", "scales")

    def __init__(self, integers: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        """
        Args:
            integers: [out, in] int8.
            scales: [out, scales of an output].
            dtype: of the activations.
        """
        self.integers, self.scales, self.dtype = integers, scales, dtype

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


class StoredWeight(_Widened):
    """As a GGUF file stores it; widened by the `gguf` library."""

    __slots__ = ("dtype", "kind", "stored")

    def __init__(self, stored: Tensor, kind: str, dtype: torch.dtype) -> None:
        """
        Args:
            stored: [out, bytes of an output] uint8.
            kind: GGUF's name of the type, in lower case.
            dtype: of the activations.
        """
        self.stored, self.kind, self.dtype = stored, kind, dtype

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]"""
        import gguf

        inputs, num_bytes = gguf.GGML_QUANT_SIZES[self._type]
        return self.stored.shape[0], self.stored.shape[1] // num_bytes * inputs

    def rows(self, ids: Tensor) -> Tensor:
        return self._widened(self.stored[ids])

    def plain(self) -> Tensor:
        return self._widened(self.stored)

    @property
    def num_bytes(self) -> int:
        return self.stored.nbytes

    @property
    def _type(self) -> Any:
        import gguf

        return gguf.GGMLQuantizationType[self.kind.upper()]

    def _widened(self, stored: Tensor) -> Tensor:
        import gguf

        values = torch.from_numpy(gguf.dequantize(stored.cpu().numpy(), self._type))
        return values.to(stored.device, self.dtype)


class PackedWeight:
    """In panels for the native kernels."""

    __slots__ = ("panels", "paths")

    def __init__(
        self,
        kernels: NativeOps,
        weight: Packable,
        memory: WeightMemory,
        *,
        is_gated: bool,
        int8: bool = False,
        paths: Paths = Paths(),  # noqa: B008  # immutable
    ) -> None:
        """
        Args:
            weight: [out, in] bfloat16, or what stays as it is stored.
            int8: cut a bfloat16 weight to 8 bits.
            paths: which kernels multiply.
        """
        self.paths = paths
        kind, shape = packed_kind(weight, int8=int8), shape_of(weight)
        values = memory.take(*kernels.panels_form(shape, kind, is_gated))
        self.panels = Panels(values, shape, is_gated, kind)
        if kind == "int8":
            num_places = len(values) * PANEL
            scales, sums = torch.zeros(num_places), torch.zeros(num_places, dtype=torch.int32)
            self.panels = self.panels._replace(scales=scales, sums=sums)
        if isinstance(weight, Q8Weight):
            kernels.pack(weight.integers, self.panels, weight.scales)
        else:
            plain = weight.stored if isinstance(weight, StoredWeight) else weight
            kernels.pack(plain, self.panels)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._is_for_library(x):
            return functional.linear(x, self.plain(), bias)
        return self._run(x, bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._is_for_library(x):
            return silu_and_mul(functional.linear(x, self.plain(), bias))
        return self._run(x, bias)

    def rows(self, ids: Tensor) -> Tensor:
        return run_native("packed_embedding", ids, self.panels)

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


class SplitWeight:
    """A fused matrix whose parts are kept in different forms: their outputs lie side by side."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Weight]) -> None:
        self.parts = list(parts)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        packed = [part for part in self.parts if isinstance(part, PackedWeight)]
        if len(packed) == len(self.parts):
            x = x if x.stride(1) == 1 else x.contiguous()
            parts = [(part.panels, part.paths.of(len(x))) for part in packed]
            return run_native("linear_parts", x, parts, bias)
        return functional.linear(x, self.plain(), bias)

    def gated(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return silu_and_mul(self.linear(x, bias))

    def rows(self, ids: Tensor) -> Tensor:
        return self.plain()[ids]

    def plain(self) -> Tensor:
        return torch.cat([part.plain() for part in self.parts])

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


Packable = Tensor | Q8Weight | StoredWeight
"""What the kernels can be given: bfloat16, or as stored."""


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [out, in] int8 and scales [out] float32, symmetric, one scale an output."""
    values = matrix.float()
    scales = values.abs().amax(1) / 127
    integers = (values / torch.where(scales > 0, scales, 1)[:, None]).round_()
    return integers.to(torch.int8), scales


def packed_kind(weight: Packable, *, int8: bool) -> str:
    """Of the panels; see `Panels.kind`."""
    if isinstance(weight, Tensor):
        return "int8" if int8 else "bfloat16"
    return weight.kind if isinstance(weight, StoredWeight) else "q8_0"


def shape_of(weight: Packable) -> tuple[int, int]:
    """[out, in]"""
    if isinstance(weight, StoredWeight):
        return weight.shape
    matrix = weight.integers if isinstance(weight, Q8Weight) else weight
    return matrix.shape[0], matrix.shape[1]
