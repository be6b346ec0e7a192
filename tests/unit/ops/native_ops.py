"""The native kernels for every instruction set that this machine can run."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attention_backends import (
    NativeLibrary,
    able_isas,
    best_isa,
    compiler_problem,
    load_library,
)
from runtime.ops.native import NativeOps, ops_source
from runtime.ops.native.linear import Panels

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
"""Relative to the largest expected value: one rounding of bfloat16 is 4e-3."""
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
EMULATED = "emulated tiles"
DOT = "avx512_bf16 dot and vnni"
AMX = "amx tiles and vnni"
_OF_ABLE = {"avx512_bf16": [DOT], "amx": [AMX]}
ISAS = [name for isa in able_isas() for name in (isa, *_OF_ABLE.get(isa, []))] + [EMULATED]
"""Every instruction set by float multiply-adds, and by its own ways to multiply."""
BY_TILES = (EMULATED, AMX)
needs_compiler = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())


class PathOps(NativeOps):
    """Multiplies by the first of some paths that the kind of weight has."""

    wanted: tuple[str, ...] = ()

    def linear(self, x: Tensor, panels: Panels, bias: Tensor | None, path: str = "float") -> Tensor:
        able = self.of_kind(panels.kind).linear
        path = next((name for name in self.wanted if name in able), path)
        return super().linear(x, panels, bias, path)


@functools.cache
def ops_of(isa: str) -> NativeOps:
    """The kernels built for one of ISAS; EMULATED runs the AMX path on emulated tiles."""
    ops = PathOps(_library_of(isa))
    if isa in (DOT, AMX, EMULATED):
        ops.wanted = ("dot", "vnni") if isa == DOT else ("tiles", "vnni")
    return ops


def _library_of(isa: str) -> NativeLibrary:
    if isa != EMULATED:
        return load_library(ops_source(), isa.partition(" ")[0])
    flags = ("-DSTEPGRAPH_EMULATED_TILES", f"-I{Path(__file__).parent}")
    plain = [name for name in able_isas() if name != "amx"]
    isa = best_isa() if best_isa() != "amx" else plain[-1]
    return load_library(ops_source("ops_emulated_tiles", flags), isa)


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
