"""Launching the linear kernels over packed weights."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from attention_backends import NativeLibrary, launch
from runtime.ops.native.rates import able_paths
from runtime.ops.native.rows import RowKernels

KINDS = {torch.bfloat16: "bfloat16", torch.int8: "int8", torch.uint8: "q8_0"}
"""Type of packed values -> kind of weight."""
_P, _I64, _I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
PANEL = 32
"""Outputs of a panel, packing.h's kPanel."""
PRIVATE_ROWS = 16
"""linear.h's kPrivateRows: up to here every thread prepares all rows for itself."""
SMALLEST_GROUP = 4
LARGEST_GROUP = 12
"""Rows are prepared in groups of one of these sizes or between; above one, the last is whole."""
TILE_SCRATCH_ROWS = 8
"""A thread's share of scratch, in float rows, that the tile path needs (16 rows of bfloat16)."""


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("x", "weights", "scales", "sums", "bias", "out", "scratch")),
        *((name, _I64) for name in ("rows", "n_in", "n_out", "x_stride")),
        ("is_gated", _I32),
    )


class _Pack(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("plain", "packed", "scales", "sums")),
        *((name, _I64) for name in ("n_out", "n_in")),
        ("is_gated", _I32),
    )


class Panels(NamedTuple):
    """A packed matrix (see packing.h)."""

    values: Tensor
    """[panels, inputs / group, 32, group] bfloat16 or int8; Q8_0: [panels, inputs / 32, 1088]
    uint8, which holds the scales"""

    shape: tuple[int, int]
    """[out, in] of the plain matrix"""

    is_gated: bool
    """A panel is 16 gates and their 16 ups."""

    scales: Tensor | None = None
    """int8: [panels * 32] float32, of each output"""

    sums: Tensor | None = None
    """int8: [panels * 32] int32, of each output's integers"""

    def tensors(self) -> tuple[Tensor, ...]:
        """What there is."""
        if self.scales is None or self.sums is None:
            return (self.values,)
        return self.values, self.scales, self.sums


class LinearKernels(RowKernels):
    """x @ weight.T + bias over panels (see packing.h), in bfloat16 with sums in float32."""

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__(library)
        self._linear = {
            (dtype, path): library.kernel(f"linear_{kind}_{path}")
            for dtype, kind in KINDS.items()
            for path in able_paths(library, kind)
        }
        self._pack = {dtype: library.kernel(f"pack_{kind}") for dtype, kind in KINDS.items()}
        self._unpack = {dtype: library.kernel(f"unpack_{kind}") for dtype, kind in KINDS.items()}

    def linear(self, x: Tensor, panels: Panels, bias: Tensor | None, path: str = "float") -> Tensor:
        """
        Args:
            x: [T, in] bfloat16, rows dense.
            panels: the weight.
            bias: [out] bfloat16, or None.
            path: which kernel, one that this library has.

        Returns:
            [T, out] bfloat16, or [T, out / 2], silu(gate) * up, where the weight is gated.
        """
        rows, n_in = x.shape
        num_outputs = panels.shape[0] // 2 if panels.is_gated else panels.shape[0]
        out = torch.empty((rows, num_outputs), dtype=x.dtype)
        scratch = torch.empty(_scratch_floats(rows, n_in), dtype=torch.float32)
        args = _Linear(
            *(x.data_ptr(), panels.values.data_ptr(), _address(panels.scales)),
            *(_address(panels.sums), _address(bias), out.data_ptr(), scratch.data_ptr()),
            *(rows, n_in, num_outputs, x.stride(0), panels.is_gated),
        )
        biases = () if bias is None else (bias,)
        tensors = (x, *panels.tensors(), *biases, out, scratch)
        launch(self._linear[panels.values.dtype, path], args, tensors)
        return out

    def pack(self, plain: Tensor, panels: Panels, scales: Tensor | None = None) -> None:
        """Fill zeroed panels.

        Args:
            plain: [out, in] bfloat16, for Q8_0 int8; gates before ups.
            scales: for Q8_0, [out, in / 32] float16.
        """
        given = () if scales is None else (scales,)
        launch(
            self._pack[panels.values.dtype],
            _pack_args(plain, panels, panels.scales if scales is None else scales),
            (plain, *panels.tensors(), *given),
        )

    def unpack(self, values: Tensor, panels: Panels) -> Tensor:
        """The plain matrix [out, in] in bfloat16, gates before ups; `values` are the panels'."""
        plain = torch.empty(panels.shape, dtype=torch.bfloat16)
        launch(
            self._unpack[panels.values.dtype],
            _pack_args(plain, panels, panels.scales),
            (plain, *panels.tensors()),
        )
        return plain


def _pack_args(plain: Tensor, panels: Panels, scales: Tensor | None) -> _Pack:
    return _Pack(
        *(plain.data_ptr(), panels.values.data_ptr()),
        *(_address(scales), _address(panels.sums)),
        *(*panels.shape, panels.is_gated),
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _scratch_floats(rows: int, n_in: int) -> int:
    num_threads = torch.get_num_threads()
    panels = num_threads * PANEL if rows > SMALLEST_GROUP else 0  # one kept as floats by each
    prepared = rows if rows <= SMALLEST_GROUP else rows + LARGEST_GROUP - 1
    if rows <= PRIVATE_ROWS:
        prepared *= num_threads
    return n_in * max(panels + prepared, TILE_SCRATCH_ROWS * num_threads)
