"""No graph and no padding: every step at its exact size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from attention_backends import Support
from graphs._keys import Call, Case, GraphKey, Kind, run_in_place

if TYPE_CHECKING:
    from graphs._capture.pool import Resources


class Mode:
    """Runs the call as it is."""

    name: ClassVar[str] = "eager"
    kind_of_decode: ClassVar[Kind | None] = Kind.EAGER
    kind_of_mixed: ClassVar[Kind | None] = Kind.EAGER
    captures: ClassVar[bool] = False
    captures_at_use: ClassVar[int] = 0
    pads_decode: ClassVar[bool] = True

    def __init__(self, resources: Resources | None = None) -> None:
        """Nothing is needed."""

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        """Always able."""
        return ""

    def capture(self, key: GraphKey, call: Call) -> None:
        """Nothing is recorded."""

    def has(self, key: GraphKey) -> bool:
        return True

    def run(self, key: GraphKey, call: Call) -> Tensor:
        return call(run_in_place)

    def close(self) -> None:
        """Nothing is held."""
