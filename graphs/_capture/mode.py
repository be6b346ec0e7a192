"""The base of modes that capture: a graph per key, over a shared pool."""

from __future__ import annotations

import time
from typing import ClassVar

import torch
from torch import Tensor

from attention_backends import GraphSupport, Support
from graphs._capture.pool import CapturedGraph, Resources
from graphs._capture.report import CaptureRecord
from graphs._keys import Call, GraphError, GraphKey, Kind
from graphs._recorders.cuda import CudaRecorder
from graphs._recorders.recorder import Recorder


class CapturedMode:
    """Captures and replays; what differs between modes is the recorder, and where cuts break."""

    name: ClassVar[str]
    kind_of_decode: ClassVar[Kind | None] = None
    kind_of_mixed: ClassVar[Kind | None] = None
    captures: ClassVar[bool] = True
    captures_at_use: ClassVar[int] = 0
    pads_decode: ClassVar[bool] = True
    recorder_type: ClassVar[type[Recorder]] = CudaRecorder
    """Modes of equal recorder type share its memory pool."""

    def __init__(self, resources: Resources) -> None:
        self._pool = resources.pool_of(self.recorder_type)
        self._support = resources.support
        self._graphs: dict[GraphKey, CapturedGraph] = {}

    def breaks(self, key: GraphKey) -> bool:
        """Whether cuts end captured regions, or run in place."""
        return key.kind is Kind.SEGMENTED

    def capture(self, key: GraphKey, call: Call) -> CaptureRecord:
        """See `GraphMode.capture`; a key is captured once."""
        key = key.graph
        if key in self._graphs:
            raise GraphError(f"{key} is captured already")
        started, used = time.perf_counter(), self._pool.memory_bytes()
        graph = self._pool.capture(key, call, breaks=self.breaks(key))
        self._graphs[key] = graph
        return CaptureRecord(
            kind=key.kind.value,
            num_tokens=key.num_tokens,
            num_reqs=key.num_reqs,
            kv_class=key.kv_class,
            num_segments=graph.num_segments,
            seconds=time.perf_counter() - started,
            memory_bytes=self._pool.memory_bytes() - used,
        )

    def has(self, key: GraphKey) -> bool:
        """See `GraphMode.has`."""
        return key.graph in self._graphs

    def run(self, key: GraphKey, call: Call) -> Tensor:
        """See `GraphMode.run`; the call's Python is not run."""
        graph = self._graphs.get(key.graph)
        if graph is None:
            captured = ", ".join(map(str, self._graphs)) or "none"
            raise GraphError(f"{key} was not captured by {self.name}; captured: {captured}")
        return self._pool.replay(graph)

    def close(self) -> None:
        """See `GraphMode.close`; other modes of the pool must not run afterwards."""
        self._graphs.clear()
        self._pool.close()


def needs_cuda(device: torch.device) -> str:
    """Why a CUDA graph cannot be captured on the device; "" where it can."""
    return "" if device.type == "cuda" else f"it captures CUDA graphs, and the device is {device}"


def needs_support(support: Support, least: GraphSupport) -> str:
    """Why attention cannot be captured; "" where it can."""
    if support.graph >= least:
        return ""
    return (
        f"it captures attention, for which the attention backend must support {least.name}, "
        f"and it supports {support.graph.name}"
    )


ONLY_DECODE = "it serves only steps with one token per request; segmented and ragged serve others"
