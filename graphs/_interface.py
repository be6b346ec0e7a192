"""The contract of a graph mode, and the key that names a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor


class Kind(str, Enum):
    EAGER = "eager"
    """Exact sizes, nothing captured."""

    DECODE = "decode"
    """One token per request, padding requests included; full graph."""

    SEGMENTED = "segmented"
    """Padded tokens, any mix; attention runs between captured parts."""
    RAGGED = "ragged"
    """Padded tokens and requests, any mix; full graph."""


class GraphKey(NamedTuple):
    kind: Kind
    num_tokens: int
    """padded."""
    num_reqs: int
    """padded."""

    kv_class: int = 0
    eager_reason: str = ""
    """For EAGER: why no bucket served, "" where eager was asked for."""


Cut = Callable[[Callable[[], None]], None]
"""Cut(fn) runs fn outside any captured region: at capture it ends one segment and opens the
next."""

Call = Callable[[Cut], Tensor]
"""The forward over persistent buffers: [T, hidden].

It passes what must not be captured (attention in SEGMENTED) to `cut`; modes that capture whole
graphs, or none, run it in place.
"""


class GraphMode(Protocol):
    """How steps of a bucket are run.

    A file of this package exports its class as `Mode`; the file name is its YAML name.
    """

    name: ClassVar[str]
    kind_of_decode: ClassVar[Kind | None]
    """The kind it gives to steps with one token per request; None where it cannot serve them."""

    kind_of_mixed: ClassVar[Kind | None]
    """The kind it gives to all other steps; None where it cannot serve them."""

    captures: ClassVar[bool]
    """True where `capture` must be called for each bucket before it can run."""

    def capture(self, key: GraphKey, call: Call) -> None:
        """Record the call for the key; raises BackendError-like errors of its own with the
        reason."""

    def run(self, key: GraphKey, call: Call) -> Tensor:
        """Run or replay; [T, hidden], valid until the next run of any key."""
