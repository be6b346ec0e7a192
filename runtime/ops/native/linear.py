"""Launching the linear kernels over packed weights."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention_backends import NativeKernel, NativeLibrary, launch, load_library
from runtime.ops.native.rates import able_paths
from runtime.ops.native.rows import EmbeddingArgs, RowKernels
from runtime.ops.native.sources import stored_source

DTYPES = {"bfloat16": torch.bfloat16, "int8": torch.int8, "q8_0": torch.uint8}
"""Kind of weight, of those that every library has -> type of its packed values; uint8 else."""
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
        *((name, _I64) for name in ("rows", "n_in", "n_out", "x_stride", "out_stride")),
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
    """[panels, inputs / group, 32, group] bfloat16 or int8, a group being 4 bytes of an output;
    else [panels, units, bytes of a unit] uint8, which holds the scales"""

    shape: tuple[int, int]
    """[out, in] of the plain matrix"""

    is_gated: bool
    """A panel is 16 gates and their 16 ups."""

    kind: str = "bfloat16"
    """bfloat16, int8, q8_0, or one of `STORED_KINDS`"""

    scales: Tensor | None = None
    """int8: [panels * 32] float32, of each output"""

    sums: Tensor | None = None
    """int8: [panels * 32] int32, of each output's integers"""

    def tensors(self) -> tuple[Tensor, ...]:
        """What there is."""
        if self.scales is None or self.sums is None:
            return (self.values,)
        return self.values, self.scales, self.sums


class Unit(NamedTuple):
    """Inputs of an output that are stored together, with their scales."""

    inputs: int
    stored_bytes: int
    packed_bytes: int
    """Of a panel's 32 outputs."""


class KindKernels(NamedTuple):
    """Those of one kind of weight."""

    library: NativeLibrary
    linear: dict[str, NativeKernel]
    """By path."""

    pack: NativeKernel
    unpack: NativeKernel
    embedding: NativeKernel
    unit: Unit
    """Of bfloat16 and int8, whose scales are elsewhere: what a line of a panel holds."""


class LinearKernels(RowKernels):
    """x @ weight.T + bias over panels (see packing.h), in bfloat16 with sums in float32."""

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__(library)
        units = {"bfloat16": Unit(2, 4, 4 * PANEL), "int8": Unit(4, 4, 4 * PANEL)}
        units["q8_0"] = Unit(32, 34, 34 * PANEL)
        self._kinds = {kind: _kernels_of(library, kind, unit) for kind, unit in units.items()}

    def of_kind(self, kind: str) -> KindKernels:
        """Those of a stored kind are compiled when they are first asked for.

        Raises:
            NativeBuildError: they cannot be.
        """
        if kind not in self._kinds:
            library = load_library(stored_source(kind), self.library.isa)
            sizes = (ctypes.c_int64 * 3).in_dll(library.handle, "stored_sizes")
            self._kinds[kind] = _kernels_of(library, kind, Unit(*sizes))
        return self._kinds[kind]

    def panels_form(
        self, shape: tuple[int, int], kind: str, is_gated: bool
    ) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of the packed values of a matrix [out, in]."""
        outputs, inputs = shape
        panels = -(-outputs // PANEL) if not is_gated else -(-outputs // 2 // (PANEL // 2))
        unit, dtype = self.of_kind(kind).unit, DTYPES.get(kind, torch.uint8)
        if dtype is torch.uint8:
            return (panels, inputs // unit.inputs, unit.packed_bytes), dtype
        return (panels, inputs // unit.inputs, PANEL, unit.inputs), dtype

    def linear(self, x: Tensor, panels: Panels, bias: Tensor | None, path: str = "float") -> Tensor:
        """
        Args:
            x: [T, in] bfloat16, rows dense.
            panels: the weight.
            bias: [out] bfloat16, or None.
            path: which kernel, one that there is for this kind.

        Returns:
            [T, out] bfloat16, or [T, out / 2], silu(gate) * up, where the weight is gated.
        """
        outputs = panels.shape[0] // 2 if panels.is_gated else panels.shape[0]
        out = torch.empty((len(x), outputs), dtype=x.dtype)
        self._multiply(x, panels, bias, path, out, 0)
        return out

    def linear_parts(
        self, x: Tensor, parts: Sequence[tuple[Panels, str]], bias: Tensor | None
    ) -> Tensor:
        """The same for a weight of several parts, whose outputs lie side by side.

        Args:
            parts: panels, none gated, and the path of each.
        """
        outputs = sum(panels.shape[0] for panels, _ in parts)
        out = torch.empty((len(x), outputs), dtype=x.dtype)
        start = 0
        for panels, path in parts:
            self._multiply(x, panels, bias, path, out, start)
            start += panels.shape[0]
        return out

    def _multiply(
        self, x: Tensor, panels: Panels, bias: Tensor | None, path: str, out: Tensor, start: int
    ) -> None:
        """Into the columns of `out` from `start` on."""
        rows, n_in = x.shape
        scratch = torch.empty(_scratch_floats(rows, n_in), dtype=torch.float32)
        offset = start * out.element_size()
        args = _Linear(
            *(x.data_ptr(), panels.values.data_ptr(), _address(panels.scales)),
            *(_address(panels.sums), None if bias is None else bias.data_ptr() + offset),
            *(out.data_ptr() + offset, scratch.data_ptr(), rows, n_in),
            panels.shape[0] // 2 if panels.is_gated else panels.shape[0],
            *(x.stride(0), out.stride(0), panels.is_gated),
        )
        biases = () if bias is None else (bias,)
        tensors = (x, *panels.tensors(), *biases, out, scratch)
        launch(self.of_kind(panels.kind).linear[path], args, tensors)

    def packed_embedding(self, ids: Tensor, panels: Panels) -> Tensor:
        """[T] int32 or int64 ids -> [T, in] bfloat16 rows of a packed table."""
        width = panels.shape[1]
        out = torch.empty((len(ids), width), dtype=torch.bfloat16)
        args = EmbeddingArgs(
            *(ids.data_ptr(), panels.values.data_ptr(), _address(panels.scales), out.data_ptr()),
            *(len(ids), 2 * width, width, ids.dtype is torch.int64),
        )
        launch(self.of_kind(panels.kind).embedding, args, (ids, *panels.tensors(), out))
        return out

    def pack(self, plain: Tensor, panels: Panels, scales: Tensor | None = None) -> None:
        """Fill zeroed panels.

        Args:
            plain: [out, in] bfloat16, for Q8_0 int8, else [out, bytes] as stored; gates before ups.
            scales: for Q8_0, [out, in / 32] float16.
        """
        given = () if scales is None else (scales,)
        launch(
            self.of_kind(panels.kind).pack,
            _pack_args(plain, panels, panels.scales if scales is None else scales),
            (plain, *panels.tensors(), *given),
        )

    def unpack(self, values: Tensor, panels: Panels) -> Tensor:
        """The plain matrix [out, in] in bfloat16, gates before ups; `values` are the panels'."""
        plain = torch.empty(panels.shape, dtype=torch.bfloat16)
        launch(
            self.of_kind(panels.kind).unpack,
            _pack_args(plain, panels, panels.scales),
            (plain, *panels.tensors()),
        )
        return plain


def _kernels_of(library: NativeLibrary, kind: str, unit: Unit) -> KindKernels:
    return KindKernels(
        library,
        {path: library.kernel(f"linear_{kind}_{path}") for path in able_paths(library, kind)},
        library.kernel(f"pack_{kind}"),
        library.kernel(f"unpack_{kind}"),
        library.kernel(f"embedding_packed_{kind}"),
        unit,
    )


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
