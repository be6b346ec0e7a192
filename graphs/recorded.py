"""The CPU's counterpart of a CUDA graph: a step's native kernels as one list, run in one parallel
region with no Python between them."""

from __future__ import annotations

from typing import ClassVar

import torch

from attention_backends import GraphSupport, Support, compiler_problem
from graphs._capture.mode import ONLY_DECODE, CapturedMode, needs_support
from graphs._keys import Case, Kind
from graphs._recorders.kernels import KernelRecorder


class Mode(CapturedMode):
    """Steps with one token per request, each number of requests in a list of its own.

    On the CPU a few padding rows cost more than the Python that a list saves, so by itself it pads
    nothing. To record a list costs what it saves in some seven steps, so it is recorded at its
    fifth use: sizes that are passed through stay eager.
    """

    name: ClassVar[str] = "recorded"
    kind_of_decode: ClassVar[Kind | None] = Kind.DECODE
    captures_at_use: ClassVar[int] = 5
    pads_decode: ClassVar[bool] = False
    recorder_type = KernelRecorder

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        if case is Case.MIXED:
            return ONLY_DECODE
        if device.type != "cpu":
            return f"it records native kernels of the CPU, and the device is {device}"
        return compiler_problem() or needs_support(support, GraphSupport.ONE_TOKEN)
