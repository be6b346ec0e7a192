"""Which instruction sets kernels may be compiled for and run with on this machine."""

from __future__ import annotations

import ctypes
import functools
import platform

ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}
"""Name -> compiler flags, from the least to the most able. Each one holds all those before it, and
its sources see the macro STEPGRAPH_ISA_<NAME>."""

ISA_FLAGS["avx512"] = (
    *ISA_FLAGS["avx2"],
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"),
)
ISA_FLAGS["avx512_bf16"] = (*ISA_FLAGS["avx512"], "-mavx512bf16", "-mavx512vnni")
ISA_FLAGS["amx"] = (*ISA_FLAGS["avx512_bf16"], "-mamx-tile", "-mamx-bf16", "-mamx-int8")

_NEEDED_FEATURES = {
    "portable": frozenset[str](),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512_bf16": frozenset({"avx512_bf16", "avx512_vnni"}),
    "amx": frozenset({"amx_tile", "amx_bf16", "amx_int8"}),
}
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def cpu_features() -> frozenset[str]:
    """The flags that the kernel of the system lists for the CPU; empty where it lists none."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())


@functools.cache
def cpu_identity() -> str:
    """What tells this CPU from others: maker, family, model, stepping, microcode and flags, as the
    system lists them."""
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            first = lines.read().partition("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    fields = dict(map(str.strip, line.split(":", 1)) for line in first.splitlines() if ":" in line)
    return " ".join([*(fields.get(name, "") for name in names), *sorted(cpu_features())])


def able_isas(features: frozenset[str] | None = None) -> list[str]:
    """Names of the instruction sets that this process may use, from the least to the most able.

    AMX is among them only once the system has granted the process its tile registers.
    """
    features = cpu_features() if features is None else features
    able = []
    for name, needed in _NEEDED_FEATURES.items():
        if not needed <= features or (name == "amx" and not _tiles_granted()):
            break
        able.append(name)
    return able


@functools.cache
def _tiles_granted() -> bool:
    """Ask the system for the AMX tile registers; kept for the life of the process."""
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    number, request, feature = map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    return syscall(number, request, feature) == 0
