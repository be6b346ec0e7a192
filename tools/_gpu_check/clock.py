"""Time on the device and on the host; milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


class Mark:
    """A moment in the device's stream of work; on the CPU, now."""

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._at = time.perf_counter()

    def until(self, later: Mark) -> float:
        """Milliseconds to a later mark, once both have passed."""
        if self._event is not None:
            return float(self._event.elapsed_time(later._event))
        return (later._at - self._at) * 1e3


def synchronize(device: torch.device) -> None:
    """Wait for all work that was given to the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_calls(
    call: Callable[[], Any], device: torch.device, *, warm_ups: int = 3, repeats: int = 10
) -> float:
    """The median time of a call on the device."""
    for _ in range(warm_ups):
        call()
    marks = []
    for _ in range(repeats):
        start = Mark(device)
        call()
        marks.append((start, Mark(device)))
    synchronize(device)
    return median(start.until(end) for start, end in marks)
