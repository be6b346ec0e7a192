"""What captures parts of a forward: CUDA graphs on a device, an op list under emulation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Part(Protocol):
    """One captured region."""

    def check(self) -> None:
        """Raises GraphError where the region cannot be replayed safely any more; free on CUDA."""

    def replay(self) -> None:
        """Run the region again: same addresses, same ints."""

    def reset(self) -> None:
        """Drop it and what it holds."""


class Recorder(Protocol):
    """Captures regions into one memory pool, on one stream.

    Call order: `session()` around warm-ups and capture; inside it `graph()` around the capture of
    one bucket; inside that `begin()` and `end()` once per region, with eager work between them.
    """

    needs_warm_ups: ClassVar[bool]
    """Whether eager runs before a capture compile, tune or allocate something."""

    def __init__(self, device: torch.device) -> None: ...

    def session(self) -> AbstractContextManager[None]:
        """The stream of the captures is current, and Python's garbage collector is off."""

    def graph(self) -> AbstractContextManager[None]:
        """One bucket's capture; leaves no capture open when its body raises."""

    def begin(self) -> None:
        """Open a region."""

    def end(self) -> Part:
        """Close the region."""

    def borrow(self, tensor: Tensor) -> Tensor:
        """The same memory without owning it: regions captured later may reuse it."""

    def prepare_replay(self) -> None:
        """Before the first region of a bucket is replayed."""

    def memory_bytes(self) -> int:
        """Memory in use; the difference of two calls is what a capture cost."""

    def reset(self) -> None:
        """Give the pool's memory back, after every part was reset."""
