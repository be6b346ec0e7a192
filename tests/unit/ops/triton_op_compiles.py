"""Compiles the Triton ops for chips that are not here, down to machine code.

Triton's wheel brings the assembler, so shared memory and spilled registers are known without a GPU.
Run by `test_triton_ops.py` in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from runtime.ops.triton_ops import _kernels as kernels
from runtime.ops.triton_ops._launch import FUSED

CHIPS = (80, 89, 90)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
FLOATS = {"eps"}
SMALL = {"num_heads", "num_parts"}
"""ints that are not multiples of 16"""
FP32 = {"top_ptr", "part_top_ptr"}
IDS = {"id_ptr": "*i32", "part_id_ptr": "*i32", "slots_ptr": "*i64"}
HEADS = {"HALF": 64, "BLOCK_HALF": 64, "BLOCK_HEADS": 8}

JOBS: list[tuple[Any, dict[str, Any]]] = [
    (kernels.norm_rows, {"HAS_RESIDUAL": True, "BLOCK": 4096, "num_warps": 8}),
    (kernels.norm_rows, {"HAS_RESIDUAL": False, "BLOCK": 8192, "num_warps": 16}),
    (kernels.heads, {**HEADS, "HAS_NORM": True, "HAS_TURN": True, "num_warps": 2}),
    (kernels.heads, {**HEADS, "HAS_NORM": False, "HAS_TURN": True, "num_warps": 2}),
    (
        kernels.kv_rows,
        {"HEAD_DIM": 128, "BLOCK_D": 128, "BLOCK_HEADS": 8, "BLOCK_SIZE": 16, "num_warps": 4},
    ),
    (kernels.gated, {"BLOCK": 1024, "num_warps": 4}),
    (kernels.best_of_parts, {"BLOCK": 4096, "num_warps": 4}),
    (kernels.best_of_rows, {"BLOCK": 64, "num_warps": 1}),
]


def compile_kernel(kernel: Any, arch: int, constants: dict[str, Any], dtype: str) -> Any:
    """As the launcher would for 16-byte aligned tensors with dense last dimensions."""
    constants = dict(constants)
    options = {"num_warps": constants.pop("num_warps"), **FUSED}
    ones = {name: 1 for name in kernel.arg_names if name.endswith("_stride_dim")}
    constants |= {**ones, "stride_dim": 1} if "stride_dim" in kernel.arg_names else ones
    names, signature, hints = kernel.arg_names, {}, {}
    for index, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in FLOATS:
            signature[name] = "fp32"
        elif name.endswith("_ptr"):
            signature[name] = IDS.get(name, "*fp32" if name in FP32 else f"*{dtype}")
        else:
            signature[name] = "i32"
        if signature[name] not in ("constexpr", "fp32") and name not in SMALL:
            hints[(index,)] = [["tt.divisibility", 16]]
    if kernel is kernels.best_of_rows:
        signature["id_ptr"] = "*i64"
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=hints,
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def stack_bytes(compiled: Any, folder: Path) -> int:
    """Of one thread, from the machine code: what registers could not hold."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [str(CUOBJDUMP), "--dump-resource-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


@pytest.mark.parametrize("arch", CHIPS)
@pytest.mark.parametrize(
    "job", JOBS, ids=[f"{i}-{kernel.__name__}" for i, (kernel, _) in enumerate(JOBS)]
)
def test_compiles_without_spills(
    job: tuple[Any, dict[str, Any]], arch: int, tmp_path: Path
) -> None:
    kernel, constants = job
    compiled = compile_kernel(kernel, arch, constants, "bf16")
    assert stack_bytes(compiled, tmp_path) == 0
    wide = re.findall(r"ld\.global[.\w:]*\.v(\d)\.b(\d+)", compiled.asm["ptx"])
    if kernel not in (kernels.best_of_rows,):
        assert any(int(n) * int(bits) == 128 for n, bits in wide), "no load of 16 bytes"


@pytest.mark.parametrize("kernel", [kernels.norm_rows, kernels.heads])
def test_compiles_for_float32(kernel: Any) -> None:
    constants = next(constants for job, constants in JOBS if job is kernel)
    assert compile_kernel(kernel, 90, constants, "fp32").asm["cubin"]
