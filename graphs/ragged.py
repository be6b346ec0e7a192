"""One CUDA graph over the whole forward, for any mix of chunks and decodes."""

from __future__ import annotations

from typing import ClassVar

import torch

from attention_backends import GraphSupport, Support
from graphs._capture.mode import CapturedMode, needs_cuda, needs_support
from graphs._keys import Case, Kind


class Mode(CapturedMode):
    """For backends that may be captured with any query lengths, empty requests included."""

    name: ClassVar[str] = "ragged"
    kind_of_decode: ClassVar[Kind | None] = Kind.RAGGED
    kind_of_mixed: ClassVar[Kind | None] = Kind.RAGGED

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        return needs_cuda(device) or needs_support(support, GraphSupport.RAGGED)
