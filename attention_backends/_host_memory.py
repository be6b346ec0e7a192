"""Memory of the K/V cache on the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def lazy_zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages are not touched yet, aligned for vector loads: a large pool starts at once
    and holds only the memory that was used."""
    nbytes = dtype.itemsize * int(np.prod(sizes))
    memory = np.zeros(nbytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    return torch.from_numpy(memory[skip : skip + nbytes]).view(dtype).view(sizes)
