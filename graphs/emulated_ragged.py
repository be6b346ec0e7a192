"""The rules of `ragged` on any device: capture without CUDA graphs, for tests."""

from __future__ import annotations

from typing import ClassVar

import torch

from attention_backends import GraphSupport, Support
from graphs._capture.mode import CapturedMode, needs_support
from graphs._keys import Case, Kind
from graphs._recorders.emulated import EmulatedRecorder


class Mode(CapturedMode):
    """One region over the whole forward, for any mix of chunks and decodes."""

    name: ClassVar[str] = "emulated_ragged"
    kind_of_decode: ClassVar[Kind | None] = Kind.RAGGED
    kind_of_mixed: ClassVar[Kind | None] = Kind.RAGGED
    recorder_type = EmulatedRecorder

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        return needs_support(support, GraphSupport.RAGGED)
