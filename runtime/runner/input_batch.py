"""One step as arrays: made whole here, and padded here only.

Padding (docs/architecture.md): in DECODE a padding request has one token, seq_len 1 and a row of
null blocks. In the other kinds one tail request covers the padding tokens, with its own query
length as seq_len; requests after it are empty. Padding tokens have id and position 0 and write to
the trash block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from attention_backends import NULL_BLOCK, TRASH_BLOCK, AttentionBatch
from graphs import GraphKey, Kind
from runtime.data.step import BoolArray, IntArray, SchedulerOutput
from runtime.runner.buffers import HostViews, InputBuffers
from runtime.runner.states import RequestStates, slots_of


class PromptSpan(NamedTuple):
    """Prompt tokens of one row whose log-probabilities were asked for and can be had from this
    step."""

    row: int
    start: int
    """Index into the step's tokens of the first predecessor."""

    first_target: int
    """Position of the token that the first predecessor predicts."""

    count: int


@dataclass(slots=True)
class InputBatch:
    """One step's inputs.

    Arrays and tensors are views of persistent buffers, valid until the next build; T and R are
    padded sizes, B, S real ones.
    """

    key: GraphKey
    num_tokens: int
    """Real tokens."""

    num_reqs: int
    """B."""

    input_ids: Tensor
    """[T] int32."""
    positions: Tensor
    """[T] int64."""

    attention: AttentionBatch
    sample_rows: IntArray
    """[S], rows that sample a token."""

    sample_positions: IntArray
    """[S], known tokens of each before the new one, so the position of the new one."""

    logits_indices: Tensor
    """[S] int32, index into T of the last token of each."""

    prompt_spans: list[PromptSpan]

    @property
    def num_tokens_padded(self) -> int:
        return len(self.input_ids)

    @property
    def num_reqs_padded(self) -> int:
        return len(self.attention.seq_lens)

    @property
    def is_padded(self) -> bool:
        return self.num_tokens_padded > self.num_tokens or self.num_reqs_padded > self.num_reqs

    @classmethod
    def build(
        cls,
        so: SchedulerOutput,
        states: RequestStates,
        buffers: InputBuffers,
        key: GraphKey,
        sampled: Tensor | None = None,
    ) -> InputBatch:
        """Fill the buffers with the step, pad them to the key's sizes, copy them to the device.

        A step without requests, padded, is the legal dummy that graphs are captured with.

        Args:
            sampled: [S'] int32 on the device, what the step before samples; needed where the step
                has `feeds`.
        """
        buffers.turn()
        host = buffers.host
        rows, computed, scheduled = so.rows, so.num_computed_tokens, so.num_scheduled_tokens
        num_reqs, num_tokens = len(rows), int(scheduled.sum())
        size = _padded_size(key, num_tokens, num_reqs)
        total = computed + scheduled

        if num_tokens == num_reqs:
            _fill_one_token_each(host, states, rows, computed)
        else:
            _fill_ragged(host, states, rows, computed, scheduled)
        host.seq_lens[:num_reqs] = total
        width = int(states.num_blocks[rows].max()) if num_reqs else 0
        buffers.set_table_width(width)
        host.block_table[:num_reqs, :width] = states.block_table[:, :width][rows]

        samples = so.samples
        num_samples = int(np.count_nonzero(samples))
        host.logits_indices[:num_samples] = host.query_start_loc[1 : num_reqs + 1][samples] - 1

        max_query_len = int(scheduled.max()) if num_reqs else 0
        max_seq_len = int(total.max()) if num_reqs else 0
        longest = _pad(host, key.kind, num_tokens, num_reqs, size, states.block_size)
        num_fed = 0 if so.feeds is None else _note_feeds(host, states, rows, so.feeds)
        buffers.copy_to_device(size.num_reqs)
        if num_fed:
            assert sampled is not None, "tokens to feed, and no step that samples them"
            buffers.feed(sampled, num_fed)

        T, R, device = size.num_tokens, size.num_reqs, buffers.device
        return cls(
            key=key,
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            input_ids=device.input_ids[:T],
            positions=device.positions[:T],
            attention=AttentionBatch(
                num_tokens=num_tokens,
                num_reqs=num_reqs,
                query_start_loc=device.query_start_loc[: R + 1],
                seq_lens=device.seq_lens[:R],
                block_table=device.block_table[:R],
                slot_mapping=device.slot_mapping[:T],
                query_start_loc_cpu=host.query_start_loc[: R + 1],
                seq_lens_cpu=host.seq_lens[:R],
                block_table_cpu=host.block_table[:R],
                max_query_len=max(max_query_len, longest),
                max_seq_len=max(max_seq_len, longest),
            ),
            sample_rows=rows[samples],
            sample_positions=total[samples],
            logits_indices=device.logits_indices[:num_samples],
            prompt_spans=_prompt_spans(so, states) if states.prompt_logprobs else [],
        )


class _Size(NamedTuple):
    num_tokens: int
    num_reqs: int


def _padded_size(key: GraphKey, num_tokens: int, num_reqs: int) -> _Size:
    """The sizes to pad to.

    Where attention runs outside the graph (EAGER, SEGMENTED) the number of requests is free, so
    there is always room for a tail request; elsewhere it is the key's.
    """
    T, R = max(key.num_tokens, num_tokens), max(key.num_reqs, num_reqs)
    assert key.num_tokens in (0, T), f"{num_tokens} tokens do not fit in {key}"
    if key.kind in (Kind.EAGER, Kind.SEGMENTED):
        return _Size(T, max(R, num_reqs + (num_tokens < T)))
    assert key.num_reqs == R, f"{num_reqs} requests do not fit in {key}"
    if key.kind is Kind.DECODE:
        assert T == R, f"{num_tokens} tokens of {num_reqs} requests do not fit in {key}"
        assert num_tokens == num_reqs, f"{key} takes one token a request, got {num_tokens}"
    else:
        assert num_tokens == T or num_reqs < R, f"{key} has no room for a tail request"
    return _Size(T, R)


def _fill_one_token_each(
    host: HostViews, states: RequestStates, rows: IntArray, computed: IntArray
) -> None:
    n = len(rows)
    host.input_ids[:n] = states.token_ids[rows, computed]
    host.positions[:n] = computed
    host.slot_mapping[:n] = slots_of(states.block_table, rows, computed, states.block_size)
    host.query_start_loc[: n + 1] = np.arange(n + 1)


def _fill_ragged(
    host: HostViews,
    states: RequestStates,
    rows: IntArray,
    computed: IntArray,
    scheduled: IntArray,
) -> None:
    n, num_tokens = len(rows), int(scheduled.sum())
    starts = host.query_start_loc[: n + 1]
    starts[0] = 0
    np.cumsum(scheduled, out=starts[1:])
    positions = np.repeat(computed - starts[:-1], scheduled)
    positions += np.arange(num_tokens, dtype=np.int32)
    token_rows = np.repeat(rows, scheduled)
    host.input_ids[:num_tokens] = states.token_ids[token_rows, positions]
    host.positions[:num_tokens] = positions
    host.slot_mapping[:num_tokens] = slots_of(
        states.block_table, token_rows, positions, states.block_size
    )


def _note_feeds(host: HostViews, states: RequestStates, rows: IntArray, feeds: BoolArray) -> int:
    """Where the tokens that the host does not know come from and go to; how many there are."""
    fed_rows = rows[feeds]
    host.feed_from[: len(fed_rows)] = states.sample_index[fed_rows]
    host.feed_to[: len(fed_rows)] = host.query_start_loc[: len(rows)][feeds]
    return len(fed_rows)


def _pad(
    host: HostViews, kind: Kind, num_tokens: int, num_reqs: int, size: _Size, block_size: int
) -> int:
    """Fill what is past the real tokens and requests; the longest query among the padding."""
    T, R = size
    num_padding = T - num_tokens
    host.input_ids[num_tokens:T] = 0
    host.positions[num_tokens:T] = 0
    host.slot_mapping[num_tokens:T] = TRASH_BLOCK * block_size + np.arange(num_padding) % block_size
    host.block_table[num_reqs:R] = NULL_BLOCK
    if kind is Kind.DECODE:
        host.query_start_loc[num_reqs : R + 1] = np.arange(num_reqs, R + 1)
        host.seq_lens[num_reqs:R] = 1
        return 1
    host.query_start_loc[num_reqs + 1 : R + 1] = T
    host.seq_lens[num_reqs:R] = 0
    if num_padding:
        host.seq_lens[num_reqs] = num_padding
    return num_padding


def _prompt_spans(so: SchedulerOutput, states: RequestStates) -> list[PromptSpan]:
    spans = []
    starts = np.cumsum(so.num_scheduled_tokens) - so.num_scheduled_tokens
    for row, computed, scheduled, start in zip(
        so.rows.tolist(),
        so.num_computed_tokens.tolist(),
        so.num_scheduled_tokens.tolist(),
        starts.tolist(),
        strict=True,
    ):
        num_prompt = states.prompt_logprobs.get(row)
        if num_prompt is not None:
            count = min(computed + scheduled, num_prompt - 1) - computed
            if count > 0:
                spans.append(PromptSpan(row, start, computed + 1, count))
    return spans
