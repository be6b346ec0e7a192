"""Host arrays to the device, in one copy that the host does not wait for; and tensors back."""

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


class HostCopy:
    """A tensor on its way to the host.

    The copy is queued when this is made, so that `read` waits for nothing that is queued later.
    """

    def __init__(self, source: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if source.device.type == "cuda":
            self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._host.copy_(source, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        else:
            self._host = source.to("cpu", copy=True)

    def read(self) -> Array:
        """The values; the array is the caller's."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.numpy()
