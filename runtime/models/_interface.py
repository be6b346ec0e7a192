"""The contract of a model: tokens in, hidden states out, attention passed by hand."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Attend(Protocol):
    """What a layer calls for attention; bound to one step by the runner."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, Hq, D], k and v [T, Hkv, D], positions already applied -> [T, Hq * D]."""


class DecoderModel(Protocol):
    """A decoder over a flat row of tokens. Its file exports its class as `Model` and the `ARCHITECTURES` it serves."""

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """input_ids [T] int32, positions [T] int64 -> hidden [T, hidden], final norm applied. Allocates no state."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[S, hidden] -> [S, V], in the model's dtype."""
