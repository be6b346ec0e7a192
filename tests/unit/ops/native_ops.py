"""The native kernels for every instruction set that this machine can run."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attention_backends import able_isas, best_isa, compiler_problem, load_library
from runtime.ops.native import NativeOps, ops_source

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
"""Relative to the largest expected value: one rounding of bfloat16 is 4e-3."""
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
EMULATED = "emulated tiles"
ISAS = [*able_isas(), EMULATED]
needs_compiler = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())


@functools.cache
def ops_of(isa: str) -> NativeOps:
    """The kernels built for an instruction set; EMULATED runs the AMX path on emulated tiles."""
    if isa != EMULATED:
        return NativeOps(load_library(ops_source(), isa))
    flags = ("-DSTEPGRAPH_EMULATED_TILES", f"-I{Path(__file__).parent}")
    plain = [name for name in able_isas() if name != "amx"]
    isa = best_isa() if best_isa() != "amx" else plain[-1]
    return NativeOps(load_library(ops_source("ops_emulated_tiles", flags), isa))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_near(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Of one type and shape, and no further apart than the type's tolerance."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if not expected.numel():
        return
    tolerance = TOLERANCE[expected.dtype] if tolerance is None else tolerance
    scale = max(1.0, expected.abs().max().item())
    difference = (actual.double() - expected.double()).abs().max().item()
    assert difference <= tolerance * scale, f"{difference} of {scale}"
