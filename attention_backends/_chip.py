"""What `examine` asks about the machine. Nothing here raises or imports a kernel library."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def is_installed(module: str) -> bool:
    """True where the top-level module could be imported; it is not imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """(major, minor) of an NVIDIA device; None where `device` is not one, or is not there."""
    if device.type != "cuda" or torch.version.hip or not torch.cuda.is_available():
        return None
    if device.index is not None and device.index >= torch.cuda.device_count():
        return None
    return torch.cuda.get_device_capability(device)


def num_multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; 1 where it has none."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def refuse_chip(device: torch.device, minimum: tuple[int, int] = (8, 0)) -> str:
    """Why `device` cannot run kernels for compute capability `minimum` and up; "" where it can."""
    capability = compute_capability(device)
    if capability is None:
        if device.type == "cuda":
            return f"needs an NVIDIA GPU: torch finds no device {device}"
        return f"needs an NVIDIA GPU, not device {device}"
    if capability < minimum:
        have, need = (".".join(map(str, c)) for c in (capability, minimum))
        return f"needs compute capability {need} or newer: {device} has {have}"
    return ""
