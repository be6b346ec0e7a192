"""The contract of a graph mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from attention_backends import Support
from graphs._keys import Call, Case, GraphKey, Kind

if TYPE_CHECKING:
    from graphs._capture.pool import Resources
    from graphs._capture.report import CaptureRecord


class GraphMode(Protocol):
    """How steps of a bucket are run.

    A file of this package exports its class as `Mode`; the file name is its YAML name.
    `graphs.GraphSet` makes the modes of a configuration, with what they share.
    """

    name: ClassVar[str]
    kind_of_decode: ClassVar[Kind | None]
    """The kind it gives to steps with one token per request; None where it cannot serve them."""
    kind_of_mixed: ClassVar[Kind | None]
    """The kind it gives to all other steps; None where it cannot serve them."""
    captures: ClassVar[bool]
    """True where `capture` must be called for each bucket before it can run."""
    captures_at_use: ClassVar[int]
    """k: a bucket is captured at its k-th use; 0: before serving."""
    pads_decode: ClassVar[bool]
    """False where `graphs.sizes: auto` makes every number of requests a bucket of decode steps."""

    def __init__(self, resources: Resources) -> None: ...

    @classmethod
    def examine(cls, case: Case, support: Support, device: torch.device) -> str:
        """Why the mode cannot serve the case with this backend on this device; "" where it can."""

    def capture(self, key: GraphKey, call: Call) -> CaptureRecord | None:
        """Record the call for the key; what it cost, None where nothing is recorded.

        Raises:
            GraphError: with the bucket and the reason.
        """

    def has(self, key: GraphKey) -> bool:
        """Whether the key can be run."""

    def run(self, key: GraphKey, call: Call) -> Tensor:
        """Run or replay; [T, hidden], valid until the next run of any key."""

    def close(self) -> None:
        """Drop graphs and their memory; before process groups and backends are closed."""
