"""What names a captured graph, and the call that it captures."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class GraphError(Exception):
    """A graph mode, bucket size or capture that cannot be had; says which, why, and what is
    allowed."""


class Kind(str, Enum):
    EAGER = "eager"
    """exact sizes, nothing captured"""
    DECODE = "decode"
    """one token per request, padding requests included; full graph"""
    SEGMENTED = "segmented"
    """padded tokens, any mix; attention runs between captured parts"""
    RAGGED = "ragged"
    """padded tokens and requests, any mix; full graph"""


class Case(str, Enum):
    """The two kinds of step for which the configuration names a mode (`graphs.decode`,
    `graphs.mixed`)."""

    DECODE = "decode"
    """one token per request"""
    MIXED = "mixed"
    """every other step"""


class GraphKey(NamedTuple):
    kind: Kind
    num_tokens: int
    """padded"""
    num_reqs: int
    """Request rows to lay out. DECODE: equal to num_tokens. RAGGED: fixed per bucket. SEGMENTED:
    the real requests, and one row more for the tail where there is padding. EAGER: the real
    requests."""
    kv_class: int = 0
    """upper bound of seq_lens where the backend's graphs bake one; 0 where not"""
    eager_reason: str = ""
    """for EAGER: why no bucket served, "" where eager was asked for"""

    @property
    def graph(self) -> GraphKey:
        """The key of the captured graph that serves this one: SEGMENTED graphs hold no attention,
        so any number of requests shares one."""
        return self._replace(num_reqs=0) if self.kind is Kind.SEGMENTED else self

    def __str__(self) -> str:
        reqs = f", {self.num_reqs} requests" if self.kind in (Kind.DECODE, Kind.RAGGED) else ""
        kv = f", keys up to {self.kv_class}" if self.kv_class else ""
        return f"{self.kind.value}({self.num_tokens} tokens{reqs}{kv})"


class Cut(Protocol):
    """`cut(fn, *args)` runs `fn(*args)` outside any captured region, where the mode can: capture
    ends one segment before it and opens the next after it.

    `fn` is kept, and run again with the same arguments at every replay, while the rest of the
    forward's Python is not. Hence it must read what changes from step to step (the plan) from an
    object that the caller updates, never from a variable of the captured call. Tensors made
    inside the forward must come as arguments, not by closure: the mode then holds their memory
    without owning it, so that buckets can share it. `fn` writes into tensors that it was given,
    and returns nothing.
    """

    def __call__(self, fn: Callable[..., None], *args: Any) -> None: ...


Call = Callable[[Cut], Tensor]
"""The forward over persistent buffers: [T, hidden]. It passes what must not be captured
(attention in SEGMENTED) to `cut`; modes that capture whole graphs, or none, run it in place.

At a replay nothing of its Python runs: ints and addresses are those of the capture. A launch that
is no torch op (Triton, ctypes) is seen by `emulated` only if its function is decorated with
`torch.overrides.wrap_torch_function`.
"""


def run_in_place(fn: Callable[..., None], *args: Any) -> None:
    """The `Cut` of modes that have nothing to end or open."""
    fn(*args)
