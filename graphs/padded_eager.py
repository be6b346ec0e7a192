"""Pads as captured modes do, and runs eagerly: their padding without their capture, on any
device."""

from __future__ import annotations

from typing import ClassVar

from graphs import eager
from graphs._keys import Kind


class Mode(eager.Mode):
    """Runs the padded call as it is."""

    name: ClassVar[str] = "padded_eager"
    kind_of_decode: ClassVar[Kind | None] = Kind.DECODE
    kind_of_mixed: ClassVar[Kind | None] = Kind.SEGMENTED
