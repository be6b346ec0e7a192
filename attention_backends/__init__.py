"""Attention backends, one file each, one contract (`_interface.py`).

A file without a leading underscore is a backend: its name is its YAML name, it exports its class as
`Backend`, and it is imported only when it is asked for or when `auto` looks for an able one.
"""

from attention_backends._choose import (
    BackendChoiceError,
    Choice,
    backend_names,
    choose_backend,
    examine_all,
    examine_layers,
)
from attention_backends._host_memory import lazy_zeros
from attention_backends._interface import (
    NULL_BLOCK,
    NUM_RESERVED_BLOCKS,
    TRASH_BLOCK,
    AttentionBackend,
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Plan,
    Support,
)
from attention_backends._native import (
    NativeBuildError,
    NativeKernel,
    NativeLibrary,
    NativeSource,
    StepList,
    able_isas,
    best_isa,
    compiler_problem,
    cpu_identity,
    launch,
    load_library,
)
from attention_backends._out_of_memory import is_out_of_memory
from attention_backends._pair import choose_pair

__all__ = [
    "NULL_BLOCK",
    "NUM_RESERVED_BLOCKS",
    "TRASH_BLOCK",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionShape",
    "BackendChoiceError",
    "Bucket",
    "Choice",
    "GraphSupport",
    "LayerKV",
    "NativeBuildError",
    "NativeKernel",
    "NativeLibrary",
    "NativeSource",
    "Plan",
    "StepList",
    "Support",
    "able_isas",
    "backend_names",
    "best_isa",
    "choose_backend",
    "choose_pair",
    "compiler_problem",
    "cpu_identity",
    "examine_all",
    "examine_layers",
    "is_out_of_memory",
    "launch",
    "lazy_zeros",
    "load_library",
]
