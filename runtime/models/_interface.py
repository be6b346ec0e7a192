"""The contract of a model: tokens in, hidden states out, attention passed by hand."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Attend(Protocol):
    """What a layer calls for attention; bound to one step by the runner."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one layer over the step's tokens and their context.

        Args:
            layer: its number, from 0.
            q: [T, Hq, D], rotated. q, k and v may be strided views; the last dimension is dense.
            k: [T, Hkv, D], rotated.
            v: [T, Hkv, D].

        Returns:
            [T, Hq * D].
        """


class DecoderModel(Protocol):
    """A decoder over a flat row of tokens.

    Its file exports its class as `Model` and the `ARCHITECTURES` it serves.
    """

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run every layer; keeps no state.

        Args:
            input_ids: [T] int32 or int64.
            positions: [T] int64.
            attend: called once for each layer, in order.

        Returns:
            [T, hidden], final norm applied.
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[S, hidden] -> [S, V], in the model's dtype."""
