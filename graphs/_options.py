"""How graphs are captured, and what is checked while they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphs._interface import GraphError, GraphKey


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
    compare_tolerance: float = 0.0
    """largest absolute difference that the comparison allows"""
    before_run: Callable[[GraphKey], None] | None = None
    """called before each step, such as a canary that poisons padding"""
    after_run: Callable[[GraphKey, Tensor], None] | None = None
    """called with the step's [T, hidden]"""


def check_equal(key: GraphKey, replayed: Tensor, eager: Tensor, tolerance: float) -> None:
    """Demand that a replay gave what the eager forward gives.

    Args:
        key: the step's, for the message.
        replayed: [T, hidden].
        eager: [T, hidden].
        tolerance: largest absolute difference.

    Raises:
        GraphError: says how many rows differ, which is the first, and by how much.
    """
    is_wrong = ~torch.isclose(replayed, eager, rtol=0.0, atol=tolerance).flatten(1).all(1)
    rows = is_wrong.nonzero().flatten().tolist()
    if rows:
        worst = (replayed - eager).abs().max().item()
        raise GraphError(
            f"a replay of {key} differs from the eager forward in {len(rows)} of {len(eager)} "
            f"rows, the first is {rows[0]}; largest difference {worst:g}, allowed {tolerance:g}"
        )
