"""Large memory of the host."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def lazy_zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages are not touched yet: a large pool starts at once and holds only the memory
    that was used. On huge pages where the system grants them, which it does when asked: the first
    touch of a small page costs more than the writing, and walks over much memory miss the TLB."""
    num_bytes = dtype.itemsize * math.prod(sizes)
    mapping = mmap.mmap(
        -1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them: small pages serve
            mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)  # keeps the mapping alive
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes].view(dtype).view(sizes)
