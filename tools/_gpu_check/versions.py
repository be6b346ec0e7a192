"""What is installed, and on which chip."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

LIBRARIES = (
    *("torch", "triton", "numpy", "flash-attn", "tokenspeed-fa3", "flashinfer-python"),
    *("apache-tvm-ffi", "xxhash", "pydantic"),
)


def collect(device: torch.device) -> dict[str, Any]:
    """Names and versions; None where a library is not installed."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["cuda"] = torch.version.cuda
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["chip"] = properties.name
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found["multiprocessors"] = properties.multi_processor_count
        found["memory_bytes"] = properties.total_memory
    return found
