"""Which graph serves a step: from its real sizes to the key with its padded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from attention_backends import Support
from graphs._dispatch.buckets import (
    Buckets,
    decode_sizes,
    kv_class_sizes,
    normalise_sizes,
    token_sizes,
)
from graphs._interface import GraphMode
from graphs._keys import GraphKey, Kind

ABOVE_LARGEST = "above the largest bucket"
ABOVE_PADDING = "padding above {:g}x"
GRAPHS_OFF = "no bucket size fits"
ABOVE_KV = "longer than the largest kv class"


@dataclass(slots=True)
class DispatchStats:
    """Counts since the start; lengths are tokens."""

    num_steps: int = 0
    num_tokens: int = 0
    num_tokens_padded: int = 0
    buckets: Counter[str] = field(default_factory=Counter)
    """steps per bucket, by the key's name"""
    eager_reasons: Counter[str] = field(default_factory=Counter)
    """steps that no bucket served, by reason"""

    @property
    def padding_share(self) -> float:
        """Padding tokens over all tokens that were run."""
        if not self.num_tokens_padded:
            return 0.0
        return 1.0 - self.num_tokens / self.num_tokens_padded


class Dispatcher:
    """Picks the graph kind and the bucket of each step, and counts.

    A step with one token per request goes to the decode mode where that has a kind, every other
    one to the mixed mode. A step above the largest bucket, or one that would be padded more than
    `max_padding` fold, runs eagerly with a counted reason.
    """

    def __init__(
        self,
        decode: GraphMode | type[GraphMode],
        mixed: GraphMode | type[GraphMode],
        support: Support,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int = 0,
        sizes: Sequence[int] | Literal["auto"] = "auto",
        max_padding: float = 2.0,
    ) -> None:
        """
        Args:
            decode: the mode of steps with one token per request.
            mixed: the mode of all other steps.
            support: the backend's; with `bucketed_kv` the keys of full graphs carry a kv class.
            max_num_seqs: most requests of a step.
            max_num_batched_tokens: most tokens of a step.
            max_model_len: most keys of a request; needed where the backend has `bucketed_kv`.
            sizes: buckets for both kinds, or "auto".
            max_padding: largest padded / real ratio that is still worth a graph.

        Raises:
            GraphError: a size is not positive.
        """
        mixed_kind = mixed.kind_of_mixed or Kind.EAGER
        self._decode_kind = decode.kind_of_decode or mixed_kind
        self._mixed_kind = mixed_kind
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_padding = max_padding
        self._pads_decode = decode.pads_decode
        self._stats = DispatchStats()
        baked_kinds = {Kind.DECODE, Kind.RAGGED} & {self._decode_kind, self._mixed_kind}
        bucketed_kv = support.bucketed_kv and bool(baked_kinds)
        assert max_model_len or not bucketed_kv, "bucketed_kv needs max_model_len"
        self._kv_classes = Buckets.of(kv_class_sizes(max_model_len)) if bucketed_kv else None
        self._buckets = {
            kind: self._make_buckets(kind, sizes) for kind in {self._decode_kind, mixed_kind}
        }

    def dispatch(
        self, num_tokens: int, num_reqs: int, max_query_len: int, max_seq_len: int = 0
    ) -> GraphKey:
        """The key of a step with these real sizes; counts it.

        Args:
            num_tokens: tokens of the step.
            num_reqs: requests of the step, each with at least one token.
            max_query_len: most tokens of one request.
            max_seq_len: most keys of one request, this step's tokens included; used for kv classes.
        """
        kind = self._decode_kind if max_query_len == 1 else self._mixed_kind
        padded, reason = self._pad(kind, num_tokens)
        kv_class = 0
        if self._kv_classes and kind in (Kind.DECODE, Kind.RAGGED) and not reason:
            assert max_seq_len > 0, "the backend bakes a bound of seq_lens"
            kv_class = self._kv_classes.pad(max_seq_len) or 0
            reason = "" if kv_class else ABOVE_KV
        if kind is Kind.EAGER or reason:
            key = GraphKey(Kind.EAGER, num_tokens, num_reqs, eager_reason=reason)
        else:
            rows = self._rows(kind, padded)
            if kind is Kind.SEGMENTED:
                rows = num_reqs + (padded > num_tokens)
            key = GraphKey(kind, padded, rows, kv_class)
        self._count(key, num_tokens)
        return key

    def capture_keys(self) -> list[GraphKey]:
        """Every graph that `dispatch` can ask for, in the order of capture: token kinds first,
        the largest first."""
        order = [Kind.SEGMENTED, Kind.RAGGED, Kind.DECODE]
        return [
            GraphKey(kind, size, self._rows(kind, size), kv_class)
            for kind in order
            for size in reversed(self.buckets(kind).sizes)
            for kv_class in self._classes_of(kind)
        ]

    def buckets(self, kind: Kind) -> Buckets:
        """The kind's buckets; none where no mode gives the kind."""
        return self._buckets.get(kind, Buckets.of(()))

    @property
    def max_tokens_padded(self) -> int:
        """Token rows that persistent buffers need."""
        largest = max(buckets.largest for buckets in self._buckets.values())
        return max(self._max_num_batched_tokens, self._max_num_seqs, largest)

    @property
    def max_reqs_padded(self) -> int:
        """Request rows that persistent buffers need: one is spare, for the tail that covers
        padding tokens."""
        return self._max_num_seqs + 1

    def stats(self) -> DispatchStats:
        """The live counters."""
        return self._stats

    def _make_buckets(self, kind: Kind, sizes: Sequence[int] | Literal["auto"]) -> Buckets:
        if kind is Kind.EAGER:
            return Buckets.of(())
        seqs, tokens = self._max_num_seqs, self._max_num_batched_tokens
        serves_decode, serves_mixed = kind is self._decode_kind, kind is self._mixed_kind
        chosen: list[int] = []
        if serves_decode:
            chosen += (
                self._decode_sizes(seqs)
                if sizes == "auto"
                else normalise_sizes(sizes, seqs, "scheduler.max_num_seqs")
            )
        if serves_mixed:
            chosen += (
                token_sizes(tokens)
                if sizes == "auto"
                else normalise_sizes(sizes, tokens, "scheduler.max_num_batched_tokens")
            )
        return Buckets.of(chosen)

    def _decode_sizes(self, max_num_reqs: int) -> list[int]:
        if self._pads_decode:
            return decode_sizes(max_num_reqs)
        return list(range(1, max_num_reqs + 1))

    def _pad(self, kind: Kind, num_tokens: int) -> tuple[int, str]:
        """(padded tokens, reason against a graph)."""
        if kind is Kind.EAGER:
            return num_tokens, ""
        buckets = self._buckets[kind]
        padded = buckets.pad(num_tokens)
        if not buckets.sizes:
            return num_tokens, GRAPHS_OFF
        if padded is None:
            return num_tokens, ABOVE_LARGEST
        if padded > self._max_padding * num_tokens:
            return num_tokens, ABOVE_PADDING.format(self._max_padding)
        return padded, ""

    def _rows(self, kind: Kind, padded: int) -> int:
        """Request rows of a captured bucket. RAGGED: fewer real requests than tokens where there
        is padding, so `padded` rows always leave one for the tail."""
        return padded if kind is Kind.DECODE else min(padded, self._max_num_seqs + 1)

    def _classes_of(self, kind: Kind) -> tuple[int, ...]:
        if self._kv_classes is None or kind is Kind.SEGMENTED:
            return (0,)
        return self._kv_classes.sizes[::-1]

    def _count(self, key: GraphKey, num_tokens: int) -> None:
        stats = self._stats
        stats.num_steps += 1
        stats.num_tokens += num_tokens
        stats.num_tokens_padded += key.num_tokens
        if key.kind is Kind.EAGER:
            if key.eager_reason:
                stats.eager_reasons[key.eager_reason] += 1
        else:
            stats.buckets[str(key)] += 1
