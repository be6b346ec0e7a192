"""The padding canary: a debug check that padding cannot reach a real row.

A padded step runs with NaN in the trash block, in the padded rows of q, k and v and of attention's
output, and then again without padding. Real rows and the K/V that they wrote must agree.

NaN comes to q, k and v from a buffer that is added to them, 0 elsewhere: captured graphs hold the
addition, so that their padding is poisoned inside them as it is outside.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_backends import NULL_BLOCK, TRASH_BLOCK, LayerKV
from runtime.errors import StepError

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the largest value: matrix products of other shapes add in another order, so equal bits cannot
be demanded. A leak of padding is NaN, or of the values' own size."""


class Trace:
    """What the real rows of a run gave.

    Args:
        hidden: [T, hidden] of the run.
        slots: [real tokens], where they wrote their K and V.
    """

    def __init__(self, hidden: Tensor, kv: Sequence[LayerKV], slots: Tensor) -> None:
        self.hidden = hidden[: len(slots)].clone()
        self.written = [
            tensor.flatten(0, 1).index_select(0, slots) for layer in kv for tensor in layer
        ]


def no_poison(max_tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The buffer [Tmax, 1, 1] that is added to q, k and v, as it is between padded steps."""
    return torch.zeros((max_tokens, 1, 1), dtype=dtype, device=device)


def poison_trash(kv: Sequence[LayerKV]) -> None:
    """Fill the trash block with NaN."""
    _fill(kv, TRASH_BLOCK, float("nan"))


def clear_trash(kv: Sequence[LayerKV]) -> None:
    """Make the trash block finite again."""
    _fill(kv, TRASH_BLOCK, 0.0)


def compare(padded: Trace, exact: Trace, kv: Sequence[LayerKV], what: str) -> None:
    """Demand equal real rows, equal K/V and an untouched null block.

    Raises:
        StepError: names the first thing that differs.
    """
    _demand_close(padded.hidden, exact.hidden, f"hidden states of {what}")
    for i, (a, b) in enumerate(zip(padded.written, exact.written, strict=True)):
        _demand_close(a, b, f"{'KV'[i % 2]} written by layer {i // 2} of {what}")
    for layer, tensors in enumerate(kv):
        if any(bool(tensor[NULL_BLOCK].any()) for tensor in tensors):
            raise StepError(f"padding canary: {what} wrote the null block of layer {layer}")


def _demand_close(padded: Tensor, exact: Tensor, what: str) -> None:
    a, b = padded.float(), exact.float()
    if torch.equal(a, b):
        return
    finite = b.isfinite()
    bound = TOLERANCE[exact.dtype] * float(b[finite].abs().max() if finite.any() else 0.0)
    wrong = ~torch.isclose(a, b, rtol=0.0, atol=bound, equal_nan=True)
    if wrong.any():
        row = int(wrong.flatten(1).any(1).nonzero()[0])
        raise StepError(
            f"padding canary: {what} differ with padding from row {row} on: "
            f"largest difference {float((a - b).abs().nan_to_num(torch.inf).max()):g}, "
            f"allowed {bound:g} (engine.padding_canary)"
        )


def _fill(kv: Sequence[LayerKV], block: int, value: float) -> None:
    for layer in kv:
        for tensor in layer:
            tensor[block] = value
