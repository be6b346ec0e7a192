"""The forward over one step's buffers, as a graph mode runs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_backends import AttentionBackend, AttentionShape, LayerKV, Plan
from graphs import Cut
from runtime.models._interface import DecoderModel
from runtime.ops import write_kv
from runtime.runner.input_batch import InputBatch


class AttentionOutputs:
    """Where attention writes: one buffer per width, since layers take turns.

    Args:
        shapes: one per layer.
        max_tokens: rows, the largest padded step.
    """

    def __init__(
        self, shapes: Sequence[AttentionShape], max_tokens: int, device: torch.device
    ) -> None:
        kinds = [(s.num_q_heads, s.head_dim, s.dtype) for s in shapes]
        self.buffers = {
            (heads, dim, dtype): torch.zeros((max_tokens, heads, dim), dtype=dtype, device=device)
            for heads, dim, dtype in dict.fromkeys(kinds)
        }
        self._of_layer = [self.buffers[kind] for kind in kinds]

    def of(self, layer: int) -> Tensor:
        """[Tmax, Hq, D]."""
        return self._of_layer[layer]


class Forward:
    """A `graphs.Call`. What changes from step to step without a new capture is in attributes,
    which the parts between captured regions read when they run.

    Args:
        poison: of the padding canary: added to q, k and v, inside captured regions too; None
            without it.

    Attributes:
        plan: the attention backend's.
    """

    def __init__(
        self,
        model: DecoderModel,
        backend: AttentionBackend,
        kv: list[LayerKV],
        outputs: AttentionOutputs,
        batch: InputBatch,
        plan: Plan,
        poison: Tensor | None = None,
    ) -> None:
        self._model, self._backend, self._kv, self._outputs = model, backend, kv, outputs
        self._input_ids, self._positions = batch.input_ids, batch.positions
        self._slot_mapping = batch.attention.slot_mapping
        self._poison = poison
        self.plan = plan

    def __call__(self, cut: Cut) -> Tensor:
        """[T, hidden]."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cut(self._write_and_attend, layer, q, k, v)
            return self._outputs.of(layer)[: len(q)].flatten(1)

        return self._model.forward(self._input_ids, self._positions, attend)

    def _write_and_attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        if self._poison is not None:
            for tensor in (q, k, v):
                tensor += self._poison[: len(tensor)]
        kv = self._kv[layer]
        write_kv(k, v, kv, self._slot_mapping)
        self._backend.attend(layer, q, kv, self._outputs.of(layer)[: len(q)], self.plan)
