"""Compiles `triton_paged`'s kernels for chips that are not here, down to machine code.

Triton's wheel brings the assembler, so shared memory and spilled registers are known without a GPU.
Run by `test_triton_paged.py` in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attention_backends import _triton_kernels as kernels
from attention_backends._interface import AttentionShape
from attention_backends._triton_tiles import constants, decode_tiles, ragged_tiles, reduce_constants

SHARED_BYTES = {89: 99 * 1024, 90: 227 * 1024}
"""Shared memory of a block, CUDA C++ programming guide, table of compute capabilities."""
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
NEVER_SPECIALIZED = ("num_reqs", "max_blocks")


def compile_kernel(kernel: object, arch: int, shape: AttentionShape, values: dict) -> object:
    """As the launcher would for 16-byte aligned tensors and strides."""
    values = dict(values)
    options = {
        name: values.pop(name)
        for name in ("num_warps", "num_stages", "enable_fp_fusion")
        if name in values
    }
    names, signature, hints = kernel.arg_names, {}, {}
    for index, name in enumerate(names):
        if name in values:
            signature[name] = "constexpr"
        elif name == "scale":
            signature[name] = "fp32"
        else:
            tensors = {f"{t}_ptr": TYPES[shape.dtype] for t in ("q", "k", "v", "out")}
            tensors |= dict.fromkeys(("partial_ptr", "lse_ptr"), "fp32")
            element = tensors.get(name, "i32")
            signature[name] = f"*{element}" if name.endswith("_ptr") else "i32"
            if name not in NEVER_SPECIALIZED:
                hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in values.items()},
        attrs=hints,
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def spilled_bytes(compiled: object, folder: Path) -> int:
    """Stack of one thread, from the machine code."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [str(CUOBJDUMP), "--dump-resource-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def make_shape(head_dim: int, dtype: torch.dtype, window: int | None = None) -> AttentionShape:
    return AttentionShape(32, 8, head_dim, dtype, dtype, 0.1, window)


SHAPES = [
    make_shape(128, torch.bfloat16),
    make_shape(128, torch.bfloat16, window=4096),
    make_shape(256, torch.bfloat16),
    make_shape(128, torch.float32),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.head_dim}-{s.dtype}-{s.window}")
@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_fits_the_chip(arch: int, shape: AttentionShape, tmp_path: Path) -> None:
    ragged, decode = ragged_tiles(shape), decode_tiles(shape)
    split = {"SPLITS": 8, "MIN_TILES": 2}
    jobs = [
        (kernels.ragged, constants(shape, 16, ragged)),
        (kernels.decode, constants(shape, 16, decode) | split),
    ]
    if shape is SHAPES[0]:  # the same loop, and a store without partial sums
        jobs.append((kernels.decode, constants(shape, 16, decode) | split | {"SPLITS": 1}))
    for kernel, values in jobs:
        compiled = compile_kernel(kernel, arch, shape, values)
        assert compiled.metadata.shared <= SHARED_BYTES[arch]
        assert spilled_bytes(compiled, tmp_path) <= 256
        if shape.dtype == torch.bfloat16:
            assert re.search(r"mma\.sync|wgmma", compiled.asm["ptx"]), "tensor cores are not used"


def test_reduce_compiles(tmp_path: Path) -> None:
    shape = SHAPES[0]
    values = reduce_constants(shape, 16) | {"SPLITS": 32, "MIN_TILES": 2}
    compiled = compile_kernel(kernels.reduce, 90, shape, values)
    assert spilled_bytes(compiled, tmp_path) == 0
