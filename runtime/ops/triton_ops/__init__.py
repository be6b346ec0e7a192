"""The ops as Triton kernels, for NVIDIA GPUs; imports triton, so it is imported when it is chosen.

Each agrees with its twin in `runtime.ops` up to rounding: arithmetic is float32, and a result is
rounded once. `embedding`, `rotation` and `top_k`, which run once a step, are torch's and the twins.
Launches only, no sync and no state, so each may be captured. They announce themselves
to torch, so that emulated captures see them.
"""

from torch.nn.functional import embedding

from runtime.ops.rotary import rotation
from runtime.ops.scores import top_k
from runtime.ops.triton_ops.activation import silu_and_mul
from runtime.ops.triton_ops.argmax import argmax
from runtime.ops.triton_ops.kv_write import write_kv
from runtime.ops.triton_ops.norm import add_rms_norm, head_rms_norm, rms_norm
from runtime.ops.triton_ops.rotary import norm_and_rotary, rotary

__all__ = [
    "add_rms_norm",
    "argmax",
    "embedding",
    "head_rms_norm",
    "norm_and_rotary",
    "rms_norm",
    "rotary",
    "rotation",
    "silu_and_mul",
    "top_k",
    "write_kv",
]
