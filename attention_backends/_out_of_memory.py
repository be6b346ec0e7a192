"""Which errors mean that memory ran out: each allocator has its own."""

from __future__ import annotations

import errno

import torch

_SIGNS = ("out of memory", "allocate memory", "alloc_failed")
"""In lower case, in messages of RuntimeError: of CUDA's driver, torch's host allocator, memory maps
and NVIDIA's libraries, in this order."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused: torch's on a device or the host, a driver's or a library's,
    numpy's, the system's."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)
