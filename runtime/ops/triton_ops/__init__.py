"""The ops as Triton kernels, for NVIDIA GPUs; imports triton, so it is imported when it is chosen.

Each agrees with its twin in `runtime.ops` up to rounding: arithmetic is float32, and a result is
rounded once. Launches only, no sync and no state, so each may be captured. They announce themselves
to torch, so that emulated captures see them.
"""

from runtime.ops.triton_ops.activation import silu_and_mul
from runtime.ops.triton_ops.argmax import argmax
from runtime.ops.triton_ops.kv_write import write_kv
from runtime.ops.triton_ops.norm import add_rms_norm, head_rms_norm, rms_norm
from runtime.ops.triton_ops.rotary import norm_rotary, rotary

__all__ = [
    "add_rms_norm",
    "argmax",
    "head_rms_norm",
    "norm_rotary",
    "rms_norm",
    "rotary",
    "silu_and_mul",
    "write_kv",
]
