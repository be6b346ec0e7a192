"""The rules of `full` and `segmented` on any device: capture without CUDA graphs, for tests."""

from __future__ import annotations

from typing import ClassVar

import torch

from attention_backends import GraphSupport, Support
from graphs._capture.mode import CapturedMode
from graphs._keys import Case, GraphKey, Kind
from graphs._recorders.emulated import EmulatedRecorder


class Mode(CapturedMode):
    """Decode steps are one region where the backend's attention may be captured; where it may
    not, they break at attention as mixed steps do."""

    name: ClassVar[str] = "emulated"
    kind_of_decode: ClassVar[Kind | None] = Kind.DECODE
    kind_of_mixed: ClassVar[Kind | None] = Kind.SEGMENTED
    recorder_type = EmulatedRecorder

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        """Always able."""
        return ""

    def breaks(self, key: GraphKey) -> bool:
        return key.kind is Kind.SEGMENTED or self._support.graph < GraphSupport.ONE_TOKEN
