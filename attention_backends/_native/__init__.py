"""Native kernels for the CPU: building them at first use, loading them, running lists of them."""

from attention_backends._native.build import (
    NativeBuildError,
    NativeSource,
    best_isa,
    compiler_problem,
)
from attention_backends._native.cpu import able_isas, cpu_identity
from attention_backends._native.launch import (
    NativeKernel,
    NativeLibrary,
    StepList,
    launch,
    load_library,
)

__all__ = [
    "NativeBuildError",
    "NativeKernel",
    "NativeLibrary",
    "NativeSource",
    "StepList",
    "able_isas",
    "best_isa",
    "compiler_problem",
    "cpu_identity",
    "launch",
    "load_library",
]
