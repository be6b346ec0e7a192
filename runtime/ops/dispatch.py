"""Each op by a kernel where there is one and the tensors fit, else by its twin: native kernels on
the CPU, Triton's on NVIDIA GPUs."""

from __future__ import annotations

import functools
import importlib
import logging
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import wrap_torch_function

from attention_backends import LayerKV
from runtime.ops import activation, kv_write, norm, rotary, scores
from runtime.ops.native import native_ops
from runtime.ops.native.rows import ELEMENTS
from runtime.ops.rotary import Rotation

_INTEGERS = (torch.int32, torch.int64)
_TYPES = {"cpu": tuple(ELEMENTS), "cuda": (torch.float32, torch.bfloat16, torch.float16)}
"""Element types that there are kernels for, by the kind of device."""
_log = logging.getLogger(__name__)


@wrap_torch_function(lambda op, *args: args[:1])
def run_native(op: str, *args: Any) -> Any:
    """A method of NativeOps, seen by torch function modes (so by `graphs`) as one op."""
    kernels = native_ops()
    assert kernels is not None, "callers ask `has_kernels` first"
    return getattr(kernels, op)(*args)


@wrap_torch_function(lambda op, *args: args[:1])
def run_kernel(op: str, *args: Any) -> Any:
    """The same, on whichever device the first argument is."""
    kernels = _kernels_of(args[0].device.type)
    assert kernels is not None, "callers ask `has_kernels` first"
    return getattr(kernels, op)(*args)


def has_kernels(*tensors: Tensor) -> bool:
    """Whether there are kernels for tensors like these: rows, all of one type that kernels are made
    for on their device."""
    first = tensors[0]
    if first.dtype not in _TYPES.get(first.device.type, ()):
        return False
    for tensor in tensors:
        if tensor.dtype is not first.dtype or tensor.stride(-1) != 1:
            return False
    return _kernels_of(first.device.type) is not None


def _kernels_of(device_type: str) -> Any:
    """Every op by its name; None where there are none for the device."""
    return native_ops() if device_type == "cpu" else _triton_ops()


@functools.cache
def _triton_ops() -> Any:
    if find_spec("triton") is None:
        _log.warning("ops run in plain torch, which is slower: triton is not installed")
        return None
    return importlib.import_module("runtime.ops.triton_ops")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `norm.rms_norm`."""
    if has_kernels(x, weight):
        return run_kernel("rms_norm", x, weight, eps)
    return norm.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `norm.add_rms_norm`."""
    if has_kernels(x, residual, weight):
        return run_kernel("add_rms_norm", x, residual, weight, eps)
    return norm.add_rms_norm(x, residual, weight, eps)


def rotation(
    positions: Tensor, inverse_frequencies: Tensor, scale: float, dtype: torch.dtype
) -> Rotation:
    """See `rotary.rotation`."""
    fits = positions.dtype is torch.int64 and positions.is_contiguous() and dtype in ELEMENTS
    if fits and has_kernels(inverse_frequencies):
        return run_kernel("rotation", positions, inverse_frequencies, scale, dtype)
    return rotary.rotation(positions, inverse_frequencies, scale, dtype)


def norm_and_rotary(x: Tensor, turn: Rotation, weight: Tensor | None, eps: float) -> Tensor:
    """See `rotary.norm_and_rotary`."""
    fits = x.shape[-1] % 2 == 0 and x.stride(1) == x.shape[2] and turn.cos.is_contiguous()
    if fits and has_kernels(x, turn.cos, *(() if weight is None else (weight,))):
        run_kernel("norm_and_rotary", x, turn, weight, eps)
        return x
    return rotary.norm_and_rotary(x, turn, weight, eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `activation.silu_and_mul`."""
    if has_kernels(gate_up):
        return run_kernel("silu_and_mul", gate_up)
    return activation.silu_and_mul(gate_up)


def write_kv(k: Tensor, v: Tensor, kv: LayerKV, slot_mapping: Tensor) -> None:
    """See `kv_write.write_kv`."""
    fits = kv.k.stride() == kv.v.stride() and slot_mapping.is_contiguous()
    if fits and has_kernels(k, v, kv.k, kv.v):
        run_kernel("write_kv", k, v, kv, slot_mapping)
    else:
        kv_write.write_kv(k, v, kv, slot_mapping)


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of a table.

    Args:
        ids: [T] int32 or int64, all within the table.
        table: [V, width].

    Returns:
        [T, width].
    """
    fits = ids.dtype in _INTEGERS and ids.is_contiguous() and table.is_contiguous()
    if fits and has_kernels(table):
        return run_kernel("embedding", ids, table)
    return functional.embedding(ids, table)


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `scores.argmax`."""
    return run_kernel("argmax", logits) if has_kernels(logits) else scores.argmax(logits)


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See `scores.top_k`."""
    if count <= scores.MOST_NATIVE and has_kernels(logits):
        return run_kernel("top_k", logits, count)
    return scores.top_k(logits, count)
