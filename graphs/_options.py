"""How graphs are captured, and what is checked while they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphs._keys import GraphError, GraphKey

COMPARE_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Of a row's length: kernels may add in another order from run to run, and every layer rounds to
the type. A replay that reads what it should not gives rows that differ by about their length."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Of a `GraphSet`."""

    lazy_after: int = 0
    """0: all buckets are captured before serving; k: each at its k-th use"""
    num_warm_ups: int = 2
    check_addresses: bool = False
    """compare the addresses of the named buffers before each replay"""
    compare_every: int = 0
    """run every n-th replay eagerly too and compare; 0 is off"""
    before_run: Callable[[GraphKey], None] | None = None
    """called before each step, such as a canary that poisons padding"""
    after_run: Callable[[GraphKey, Tensor], None] | None = None
    """called with the step's [T, hidden]"""


def check_equal(key: GraphKey, replayed: Tensor, eager: Tensor) -> None:
    """Demand that a replay gave what the eager forward gives; where that is not finite, exactly.

    Args:
        key: the step's, for the message.
        replayed: [T, hidden].
        eager: [T, hidden].

    Raises:
        GraphError: rows are farther from their eager ones than COMPARE_TOLERANCE allows; says how
            many, which is the first, and by how much.
    """
    allowed = COMPARE_TOLERANCE[eager.dtype]
    wide = torch.promote_types(eager.dtype, torch.float32)
    a, b = replayed.flatten(1).to(wide), eager.flatten(1).to(wide)
    is_same = (a == b) | (a.isnan() & b.isnan())
    length = torch.where(b.isfinite(), b, 0.0).norm(dim=1)
    share = torch.where(is_same, 0.0, a - b).norm(dim=1) / length
    is_right = is_same.all(1) | (share <= allowed)
    rows = (~is_right).nonzero().flatten().tolist()
    if rows:
        worst = share[rows].nan_to_num(torch.inf).max().item()
        raise GraphError(
            f"a replay of {key} differs from the eager forward in {len(rows)} of {len(eager)} "
            f"rows, the first is {rows[0]}; largest difference {worst:g} of a row's length, "
            f"allowed {allowed:g}"
        )
