"""A call recorded as a CUDA graph; on a CPU, the call itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 2
"""Before the capture: kernels are compiled, and libraries load, at their first launch."""


def capture(call: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """What replays the call, with the addresses and host values of now."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay
