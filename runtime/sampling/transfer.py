"""Host arrays to the device: one copy for all of them, which the host does not wait for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


def reading_is_free(device: torch.device) -> bool:
    """Whether the host may look at values there without waiting for work that is under way."""
    return device.type == "cpu"


def upload(device: torch.device, *arrays: Array) -> list[Tensor]:
    """The arrays as tensors on the device; on the CPU they share their memory.

    Elsewhere they travel in one pinned block, which torch keeps until the copy has read it.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    # the widest first, so that each begins at a multiple of its item size
    order = sorted(range(len(arrays)), key=lambda i: -arrays[i].itemsize)
    block = torch.empty(
        sum(array.nbytes for array in arrays),
        dtype=torch.uint8,
        pin_memory=device.type == "cuda",
    )
    host, spans, end = block.numpy(), {}, 0
    for i in order:
        start, end = end, end + arrays[i].nbytes
        host[start:end] = np.ascontiguousarray(arrays[i]).reshape(-1).view(np.uint8)
        spans[i] = slice(start, end)
    moved = block.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [moved[spans[i]].view(dtypes[i]).view(array.shape) for i, array in enumerate(arrays)]
