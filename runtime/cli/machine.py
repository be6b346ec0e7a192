"""Facts of this machine and of what is installed on it."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "triton",
    "flash-attn",
    "flashinfer-python",
)


def machine_facts() -> Iterator[tuple[str, str]]:
    """(name, fact): system, processor, memory, GPU."""
    import psutil
    import torch

    from runtime.config import format_memory
    from runtime.machine.threads import num_usable_cpus
    from runtime.runner import free_memory_bytes

    memory = psutil.virtual_memory()
    yield "system", f"{platform.system()} {platform.release()} ({platform.machine()})"
    yield "processor", f"{_processor()}, {num_usable_cpus()} CPUs usable"
    free = format_memory(free_memory_bytes(torch.device("cpu")))
    yield "memory", f"{format_memory(memory.total)}, {free} free to this process"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            what = f"{gpu.name}, {format_memory(gpu.total_memory)}, sm_{gpu.major}{gpu.minor}"
            yield f"GPU {index}", what
    else:
        cpu_build = torch.version.cuda is None
        yield "GPU", "none: this torch is a CPU build" if cpu_build else "none: no device found"


def versions() -> Iterator[tuple[str, str]]:
    """(library, version), of those that are installed; what is optional may be missing."""
    from runtime import __version__

    yield "Python", platform.python_version()
    yield "stepgraph", __version__
    for name in LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # no Linux: the platform knows a name
    return platform.processor() or platform.machine()
