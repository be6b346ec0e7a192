"""One CUDA graph over the whole forward, for steps with one token per request."""

from __future__ import annotations

from typing import ClassVar

import torch

from attention_backends import GraphSupport, Support
from graphs._capture.mode import ONLY_DECODE, CapturedMode, needs_cuda, needs_support
from graphs._keys import Case, Kind


class Mode(CapturedMode):
    """Attention is captured too, so the backend must allow that for one-token requests."""

    name: ClassVar[str] = "full"
    kind_of_decode: ClassVar[Kind | None] = Kind.DECODE

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        if case is Case.MIXED:
            return ONLY_DECODE
        return needs_cuda(device) or needs_support(support, GraphSupport.ONE_TOKEN)
