"""Operations on flat rows of tokens.

Each has a slow twin in plain torch (`norm`, `rotary`, `activation`, `kv_write`, `scores`,
`weights`), and for the CPU a native kernel that agrees with it; `dispatch` picks. What an op writes
in place is said in the docstring of its twin. `transfer` is the way between host and device.
"""

from runtime.ops.dispatch import (
    add_rms_norm,
    argmax,
    has_kernels,
    norm_and_rotary,
    rms_norm,
    rotation,
    silu_and_mul,
    top_k,
    write_kv,
)
from runtime.ops.linear import Embedding, GatedLinear, Linear, pack
from runtime.ops.linear_paths import check_path, kernel_problem, path_facts
from runtime.ops.native import STORED_KINDS
from runtime.ops.norm import head_rms_norm
from runtime.ops.rotary import Rotation
from runtime.ops.weights import Q8Weight, SplitWeight, StoredWeight, Weight

__all__ = [
    "STORED_KINDS",
    "Embedding",
    "GatedLinear",
    "Linear",
    "Q8Weight",
    "Rotation",
    "SplitWeight",
    "StoredWeight",
    "Weight",
    "add_rms_norm",
    "argmax",
    "check_path",
    "has_kernels",
    "head_rms_norm",
    "kernel_problem",
    "norm_and_rotary",
    "pack",
    "path_facts",
    "rms_norm",
    "rotation",
    "silu_and_mul",
    "top_k",
    "write_kv",
]
