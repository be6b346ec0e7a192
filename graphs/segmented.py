"""CUDA graphs of the parts between attentions; attention itself runs between them, eagerly."""

from __future__ import annotations

from typing import ClassVar

import torch

from attention_backends import Support
from graphs._capture.mode import CapturedMode, needs_cuda
from graphs._keys import Case, Kind


class Mode(CapturedMode):
    """Serves any mix of chunks and decodes, with any backend."""

    name: ClassVar[str] = "segmented"
    kind_of_decode: ClassVar[Kind | None] = Kind.SEGMENTED
    kind_of_mixed: ClassVar[Kind | None] = Kind.SEGMENTED

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        return needs_cuda(device)
