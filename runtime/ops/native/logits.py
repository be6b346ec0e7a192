"""Launching the kernels that look for the largest scores."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from attention_backends import NativeLibrary, launch
from runtime.ops.native.rows import RowKernels

_P, _I64 = ctypes.c_void_p, ctypes.c_int64
_BEST_BYTES = 8
"""A score and its id."""


class _Argmax(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("logits", "ids", "scores", "scratch")),
        *((name, _I64) for name in ("rows", "width", "stride")),
    )


class _TopK(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("logits", "ids", "scores", "scratch")),
        *((name, _I64) for name in ("rows", "width", "stride", "count")),
    )


class LogitsKernels(RowKernels):
    """Arg-max and top-k."""

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__(library)
        self._argmax = self.by_type("argmax")
        self._top_k = self.by_type("top_k")

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        rows, width = logits.shape
        ids = torch.empty(rows, dtype=torch.int64)
        scores = torch.empty(rows)
        scratch = torch.empty(torch.get_num_threads() * rows * _BEST_BYTES, dtype=torch.uint8)
        args = _Argmax(
            *(logits.data_ptr(), ids.data_ptr(), scores.data_ptr(), scratch.data_ptr()),
            *(rows, width, logits.stride(0)),
        )
        launch(self._argmax[logits.dtype], args, (logits, ids, scores, scratch))
        return scores, ids

    def top_k(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        rows, width = logits.shape
        ids = torch.empty((rows, count), dtype=torch.int64)
        scores = torch.empty((rows, count))
        scratch = torch.empty(rows * count * _BEST_BYTES, dtype=torch.uint8)
        args = _TopK(
            *(logits.data_ptr(), ids.data_ptr(), scores.data_ptr(), scratch.data_ptr()),
            *(rows, width, logits.stride(0), count),
        )
        launch(self._top_k[logits.dtype], args, (logits, ids, scores, scratch))
        return scores, ids
