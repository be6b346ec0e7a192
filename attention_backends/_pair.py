"""Two backends as one: one for steps with a token per request, another for all other steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attention_backends._choose import BackendChoiceError, Choice, choose_backend, examine_layers
from attention_backends._interface import (
    AttentionBackend,
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Plan,
    Support,
)

PREFILL_KEY, DECODE_KEY = "attention.prefill_backend", "attention.decode_backend"
_TRIAL_BLOCKS = 3


class _PairPlan(NamedTuple):
    side: AttentionBackend
    plan: Plan


class Pair:
    """See `AttentionBackend`; a subclass names its two backends, which share one KV cache.

    Attributes:
        prefill: serves every step that has a request with several tokens.
        decode: serves the others.
    """

    name: ClassVar[str]
    prefill: ClassVar[type[AttentionBackend]]
    decode: ClassVar[type[AttentionBackend]]

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        self._prefill = self.prefill(shapes, block_size, device)
        self._decode = self.decode(shapes, block_size, device)

    @classmethod
    def preference(cls, device: torch.device) -> int:
        return 0  # a pair is named, never come upon

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        a = cls.prefill.examine(shape, block_size, device)
        b = cls.decode.examine(shape, block_size, device)
        for backend, support in ((cls.prefill, a), (cls.decode, b)):
            if not support.ok:
                return Support(False, f"{backend.name}: {support.reason}")
        return Support(
            True,
            graph=_graph_support(a.graph, b.graph),
            block_size_multiple=max(a.block_size_multiple, b.block_size_multiple),
            preferred_block_size=max(a.preferred_block_size, b.preferred_block_size),
            host_plan=a.host_plan or b.host_plan,
            bucketed_kv=a.bucketed_kv or b.bucketed_kv,
        )

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        return self._prefill.allocate_kv(num_blocks)

    def plan(self, batch: AttentionBatch) -> _PairPlan:
        side = self._decode if batch.max_query_len == 1 else self._prefill
        return _PairPlan(side, side.plan(batch))

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: _PairPlan) -> None:
        plan.side.attend(layer, q, kv, out, plan.plan)

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        one_token = [bucket for bucket in buckets if _is_one_token(bucket)]
        others = [bucket for bucket in buckets if not _is_one_token(bucket)]
        return self._decode.reserve(one_token, max_model_len) + self._prefill.reserve(
            others, max_model_len
        )

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> _PairPlan:
        side = self._decode if _is_one_token(bucket) else self._prefill
        return _PairPlan(side, side.open_bucket(bucket, batch))

    def refresh(self, plan: _PairPlan, batch: AttentionBatch) -> None:
        plan.side.refresh(plan.plan, batch)


def choose_pair(
    prefill: str,
    decode: str,
    shapes: Sequence[AttentionShape],
    block_size: int | None,
    device: torch.device,
) -> Choice:
    """Two backends by name, as one.

    Args:
        shapes: one per layer.
        block_size: tokens; None takes one that both serve, what one of them prefers.

    Raises:
        BackendChoiceError: one cannot serve the model here, no block size suits both, or they lay
            out the KV cache differently.
    """
    a = choose_backend(prefill, shapes, block_size, device, key=PREFILL_KEY)
    b = choose_backend(decode, shapes, block_size, device, key=DECODE_KEY)
    if a.backend is b.backend:
        return a
    size = block_size or _common_size(a, b, shapes, device)
    pair: Any = type(
        "Backend",
        (Pair,),
        {"name": f"{a.backend.name}+{b.backend.name}", "prefill": a.backend, "decode": b.backend},
    )
    difference = _difference(a.backend, b.backend, shapes, size, device)
    if difference:
        raise BackendChoiceError(
            f"{PREFILL_KEY}: {a.backend.name} and {DECODE_KEY}: {b.backend.name} cannot share a KV "
            f"cache: {difference}; name two that lay it out alike, or one for both"
        )
    return Choice(pair, examine_layers(pair, shapes, size, device), size, {})


def _common_size(
    a: Choice, b: Choice, shapes: Sequence[AttentionShape], device: torch.device
) -> int:
    answers = []
    for size in dict.fromkeys((a.block_size, b.block_size)):
        supports = [examine_layers(c.backend, shapes, size, device) for c in (a, b)]
        if all(support.ok for support in supports):
            return size
        answers += [
            f"blocks of {size} do not suit {choice.backend.name}: {support.reason}"
            for choice, support in zip((a, b), supports, strict=True)
            if not support.ok
        ]
    raise BackendChoiceError(
        f"{PREFILL_KEY}: {a.backend.name} and {DECODE_KEY}: {b.backend.name} prefer other block "
        f"sizes ({'; '.join(answers)}); set cache.block_size to one that both serve"
    )


def _difference(
    a: type[AttentionBackend],
    b: type[AttentionBackend],
    shapes: Sequence[AttentionShape],
    block_size: int,
    device: torch.device,
) -> str:
    """How their KV caches differ; "" where they do not."""
    caches = [c(shapes, block_size, device).allocate_kv(_TRIAL_BLOCKS) for c in (a, b)]
    for layer, (one, other) in enumerate(zip(*caches, strict=True)):
        for name, x, y in zip("KV", one, other, strict=True):
            for what in ("dtype", "shape", "stride"):
                left, right = (t.stride() if what == "stride" else getattr(t, what) for t in (x, y))
                if left != right:
                    return (
                        f"{what} of {name} in layer {layer} is {left} with {a.name}, "
                        f"{right} with {b.name}"
                    )
    return ""


def _graph_support(prefill: GraphSupport, decode: GraphSupport) -> GraphSupport:
    """What both allow together: graphs of one-token steps are the second's, ragged ones the
    first's."""
    if decode < GraphSupport.ONE_TOKEN:
        return GraphSupport.NONE
    return GraphSupport.RAGGED if prefill is GraphSupport.RAGGED else GraphSupport.ONE_TOKEN


def _is_one_token(bucket: Bucket) -> bool:
    return bucket.kind == "decode"
