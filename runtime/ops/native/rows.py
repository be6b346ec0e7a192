"""Launching the kernels that work on rows of tokens."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from attention_backends import LayerKV, NativeKernel, NativeLibrary, launch
from runtime.ops.rotary import Rotation

_P, _I64, _I32, _F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
ELEMENTS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""The element types that kernels are made for."""


class _Norm(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("x", "residual", "weight", "out")),
        *((name, _I64) for name in ("rows", "width", "x_stride", "residual_stride")),
        ("eps", _F32),
    )


class _Rotation(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("positions", "frequencies", "cos", "sin")),
        *((name, _I64) for name in ("tokens", "half")),
        ("scale", _F32),
    )


class _Rotary(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("x", "cos", "sin", "weight")),
        *((name, _I64) for name in ("tokens", "heads", "half", "stride")),
        ("eps", _F32),
    )


class _Silu(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("gate_up", "out")),
        *((name, _I64) for name in ("rows", "width", "stride")),
    )


class _Kv(ctypes.Structure):
    _fields_ = (
        ("source", _P * 2),
        ("cache", _P * 2),
        ("slots", _P),
        *((name, _I64) for name in ("tokens", "heads", "head_bytes", "block_size")),
        ("source_token", _I64 * 2),
        ("source_head", _I64 * 2),
        *((name, _I64) for name in ("block", "slot", "head")),
    )


class EmbeddingArgs(ctypes.Structure):
    """embedding.h's"""

    _fields_ = (
        *((name, _P) for name in ("ids", "table", "scales", "out")),
        *((name, _I64) for name in ("tokens", "row_bytes", "n_in")),
        ("ids_are_64_bit", _I32),
    )


class RowKernels:
    """Norms, rotary positions, activations, K/V writes and embeddings.

    Callers see to it that tensors fit: on the CPU, of one type of `ELEMENTS`, rows dense.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library
        self._norm = self.by_type("add_rms_norm")
        self._rotation = self.by_type("rotation")
        self._rotary = self.by_type("rotary")
        self._silu = self.by_type("silu_and_mul")
        self._write_kv = library.kernel("write_kv")
        self._embedding = library.kernel("embedding")

    def by_type(self, name: str) -> dict[torch.dtype, NativeKernel]:
        """The kernel of each element type."""
        return {
            dtype: self.library.kernel(f"{name}_{suffix}") for dtype, suffix in ELEMENTS.items()
        }

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        args = _Norm(
            *(None, x.data_ptr(), weight.data_ptr(), out.data_ptr()),
            *(*x.shape, 0, x.stride(0), eps),
        )
        launch(self._norm[x.dtype], args, (x, weight, out))
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        args = _Norm(
            *(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr()),
            *(*x.shape, x.stride(0), residual.stride(0), eps),
        )
        launch(self._norm[x.dtype], args, (x, residual, weight, out))
        return out

    def rotation(
        self, positions: Tensor, inverse_frequencies: Tensor, scale: float, dtype: torch.dtype
    ) -> Rotation:
        half = len(inverse_frequencies)
        cos = torch.empty((len(positions), 1, 2 * half), dtype=dtype)
        sin = torch.empty((len(positions), 1, 2 * half), dtype=dtype)
        args = _Rotation(
            *(positions.data_ptr(), inverse_frequencies.data_ptr(), cos.data_ptr()),
            *(sin.data_ptr(), len(positions), half, scale),
        )
        launch(self._rotation[dtype], args, (positions, inverse_frequencies, cos, sin))
        return Rotation(cos, sin)

    def norm_and_rotary(self, x: Tensor, turn: Rotation, weight: Tensor | None, eps: float) -> None:
        """In place, unlike the twin."""
        num_tokens, heads, width = x.shape
        args = _Rotary(
            *(x.data_ptr(), turn.cos.data_ptr(), turn.sin.data_ptr()),
            None if weight is None else weight.data_ptr(),
            *(num_tokens, heads, width // 2, x.stride(0), eps),
        )
        tensors = (x, *turn) if weight is None else (x, *turn, weight)
        launch(self._rotary[x.dtype], args, tensors)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=gate_up.dtype)
        args = _Silu(gate_up.data_ptr(), out.data_ptr(), rows, width, gate_up.stride(0))
        launch(self._silu[gate_up.dtype], args, (gate_up, out))
        return out

    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKV, slot_mapping: Tensor) -> None:
        num_tokens, heads, dim = k.shape
        size = k.element_size()
        block, slot, head, _ = (stride * size for stride in kv.k.stride())
        args = _Kv(
            (k.data_ptr(), v.data_ptr()),
            (kv.k.data_ptr(), kv.v.data_ptr()),
            slot_mapping.data_ptr(),
            *(num_tokens, heads, dim * size, kv.k.shape[1]),
            (k.stride(0) * size, v.stride(0) * size),
            (k.stride(1) * size, v.stride(1) * size),
            *(block, slot, head),
        )
        launch(self._write_kv, args, (k, v, kv.k, kv.v, slot_mapping))

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        """[T] int32 or int64 ids -> [T, width] rows of a plain table."""
        out = torch.empty((len(ids), table.shape[1]), dtype=table.dtype)
        row_bytes = table.shape[1] * table.element_size()
        args = EmbeddingArgs(
            *(ids.data_ptr(), table.data_ptr(), None, out.data_ptr(), len(ids)),
            *(row_bytes, table.shape[1], ids.dtype is torch.int64),
        )
        launch(self._embedding, args, (ids, table, out))
        return out
