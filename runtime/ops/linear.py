"""The projection of a row of tokens; where packed and quantised weights take their place."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class Linear:
    """x @ weight.T + bias.

    Attributes:
        weight: [out, in].
        bias: [out] or None.
    """

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out], in the weight's type."""
        return functional.linear(x, self.weight, self.bias)
