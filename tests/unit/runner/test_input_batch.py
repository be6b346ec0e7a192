import numpy as np
import pytest
import torch

from attention_backends import NULL_BLOCK, TRASH_BLOCK
from graphs import GraphKey, Kind
from runtime.runner.input_batch import InputBatch, PromptSpan
from runtime.runner.states import RequestStates
from tests.unit.runner.helpers import RandomSchedule, make_buffers, new_row, step

EAGER = GraphKey(Kind.EAGER, 0, 0)


def build(so, states, key=EAGER, buffers=None):
    states.apply(so)
    return InputBatch.build(so, states, buffers or make_buffers(states), key)


def example_a():
    states = RequestStates(4, 256, 16)
    prompt_b = list(range(1000, 1090))
    so = step(
        [(0, 37, 1, True), (1, 32, 58, True)],
        new=[
            new_row(0, range(100, 138), computed=37, block_ids=[7, 9, 12], prompt=30),
            new_row(1, prompt_b, computed=32, block_ids=[3, 4, 20, 21, 22, 23]),
        ],
    )
    return so, states


class TestWorkedExampleA:
    def test_exact(self):
        batch = build(*example_a())
        assert (batch.num_tokens, batch.num_tokens_padded, batch.is_padded) == (59, 59, False)
        assert batch.input_ids.tolist() == [137, *range(1032, 1090)]
        assert batch.positions.tolist() == [37, *range(32, 90)]
        a = batch.attention
        assert a.query_start_loc.tolist() == a.query_start_loc_cpu.tolist() == [0, 1, 59]
        assert a.seq_lens.tolist() == a.seq_lens_cpu.tolist() == [38, 90]
        assert a.slot_mapping.tolist() == [12 * 16 + 5, *range(320, 378)]
        assert a.block_table[:, :6].tolist() == [[7, 9, 12, 0, 0, 0], [3, 4, 20, 21, 22, 23]]
        assert batch.logits_indices.tolist() == [0, 58]
        assert batch.sample_rows.tolist() == [0, 1]
        assert batch.sample_positions.tolist() == [38, 90]
        assert (a.max_query_len, a.max_seq_len) == (58, 90)

    @pytest.mark.parametrize("kind", [Kind.SEGMENTED, Kind.RAGGED])
    def test_padded_to_64(self, kind):
        batch = build(*example_a(), GraphKey(kind, 64, 5))
        a = batch.attention
        assert batch.positions.tolist() == [37, *range(32, 90), 0, 0, 0, 0, 0]
        assert batch.input_ids[59:].tolist() == [0] * 5
        assert a.query_start_loc.tolist() == [0, 1, 59, 64, 64, 64]
        assert a.seq_lens.tolist() == [38, 90, 5, 0, 0]
        assert a.slot_mapping[:59].tolist() == [197, *range(320, 378)]
        assert a.slot_mapping[59:].tolist() == [TRASH_BLOCK * 16 + i for i in range(5)]
        assert (a.block_table[2:] == NULL_BLOCK).all()
        assert batch.logits_indices.tolist() == [0, 58]
        assert (a.num_tokens, a.num_reqs) == (59, 2)


def test_worked_example_b():
    states = RequestStates(3, 32, 4)
    so = step(
        [(0, 6, 1, True), (1, 4, 3, False), (2, 0, 4, True)],
        new=[
            new_row(0, [11, 12, 13, 14, 15, 16, 17], computed=6, block_ids=[5, 2], prompt=4),
            new_row(1, range(21, 31), computed=4, block_ids=[7, 9]),
            new_row(2, range(31, 35), block_ids=[3]),
        ],
    )
    batch = build(so, states)
    a = batch.attention
    assert batch.input_ids.tolist() == [17, 25, 26, 27, 31, 32, 33, 34]
    assert batch.positions.tolist() == [6, 4, 5, 6, 0, 1, 2, 3]
    assert a.query_start_loc.tolist() == [0, 1, 4, 8]
    assert np.cumsum([0, *a.seq_lens.tolist()]).tolist() == [0, 7, 14, 18]
    assert (a.max_query_len, a.max_seq_len) == (4, 7)
    assert a.seq_lens.tolist() == [7, 7, 4]
    assert a.slot_mapping.tolist() == [10, 36, 37, 38, 12, 13, 14, 15]
    assert a.block_table[:, :2].tolist() == [[5, 2], [7, 9], [3, NULL_BLOCK]]
    assert batch.sample_rows.tolist() == [0, 2]
    assert batch.logits_indices.tolist() == [0, 7]


@pytest.mark.case("AT01")
def test_key_length_of_a_chunk_counts_only_what_is_computed():
    states, seen = RequestStates(1, 32, 4), []
    for computed, count in ((0, 4), (4, 4), (8, 2)):
        new = [new_row(0, range(10), block_ids=[2, 3, 4])] if computed == 0 else []
        batch = build(step([(0, computed, count, computed == 8)], new=new), states)
        seen.append((batch.attention.query_start_loc.tolist(), batch.attention.seq_lens.tolist()))
    assert seen == [([0, 4], [4]), ([0, 4], [8]), ([0, 2], [10])]


@pytest.mark.case("AT11")
def test_the_first_decoded_token_has_position_n():
    states = RequestStates(1, 32, 4)
    build(step([(0, 0, 5, True)], new=[new_row(0, range(5), block_ids=[2, 3])]), states)
    states.write_tokens(np.array([0]), np.array([5]), np.array([42]))
    batch = build(step([(0, 5, 1, True)]), states)
    assert batch.positions.tolist() == [5]
    assert batch.input_ids.tolist() == [42]
    assert batch.sample_positions.tolist() == [6]


def decode_states(lengths, max_num_seqs=8):
    states = RequestStates(max_num_seqs, 64, 4)
    new, scheduled, block = [], [], 2
    for row, length in enumerate(lengths):
        count = -(-length // 4)
        new.append(new_row(row, range(length), block_ids=range(block, block + count)))
        scheduled.append((row, length - 1, 1, True))
        block += count
    return step(scheduled, new=new), states


@pytest.mark.case("GP09")
def test_padding_rows_of_a_decode_bucket_are_whole_and_harmless():
    batch = build(*decode_states([3, 9, 4, 17, 8]), GraphKey(Kind.DECODE, 8, 8))
    a = batch.attention
    assert a.query_start_loc.tolist() == list(range(9))
    assert a.seq_lens.tolist() == [3, 9, 4, 17, 8, 1, 1, 1]
    assert (a.block_table[5:] == NULL_BLOCK).all()
    assert a.slot_mapping[5:].tolist() == [4, 5, 6]  # the trash block
    assert batch.input_ids[5:].tolist() == batch.positions[5:].tolist() == [0, 0, 0]
    assert (a.max_query_len, a.max_seq_len) == (1, 17)
    assert batch.logits_indices.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.case("GP09")
def test_padding_rows_of_a_mixed_bucket_are_a_tail_and_empty_requests():
    batch = build(*decode_states([3, 9, 4, 17, 8]), GraphKey(Kind.RAGGED, 16, 9))
    a = batch.attention
    assert a.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5, 16, 16, 16, 16]
    assert a.seq_lens.tolist() == [3, 9, 4, 17, 8, 11, 0, 0, 0]
    assert (a.block_table[5:] == NULL_BLOCK).all()
    assert set(a.slot_mapping[5:].tolist()) == {4, 5, 6, 7}
    assert (a.max_query_len, a.max_seq_len) == (11, 17)


@pytest.mark.case("GP11")
def test_nothing_of_an_earlier_larger_batch_is_left():
    so, states = decode_states([40, 33, 20])
    buffers = make_buffers(states)
    buffers.host.block_table[:] = 2**31 - 1
    buffers.set_table_width(buffers.host.block_table.shape[1])
    build(so, states, GraphKey(Kind.DECODE, 4, 4), buffers)
    small = step([(0, 2, 1, True)], freed=[0, 1, 2], new=[new_row(0, range(3), block_ids=[2])])
    batch = build(small, states, GraphKey(Kind.DECODE, 4, 4), buffers)
    assert batch.attention.block_table[0].tolist() == [2] + [NULL_BLOCK] * 63
    assert (batch.attention.block_table[1:] == NULL_BLOCK).all()
    assert batch.attention.seq_lens.tolist() == [3, 1, 1, 1]


def test_tail_request_longer_than_any_request_may_be_has_table_entries_for_its_keys():
    states = RequestStates(2, 8, 4)
    so = step([(0, 0, 3, True)], new=[new_row(0, range(3), block_ids=[2])])
    batch = build(so, states, GraphKey(Kind.SEGMENTED, 64, 0), make_buffers(states, 64))
    assert batch.attention.seq_lens.tolist() == [3, 61]
    assert batch.attention.block_table.shape[1] * 4 >= 61


@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.SEGMENTED, Kind.RAGGED])
def test_a_step_without_requests_is_the_dummy_of_a_bucket(kind):
    states = RequestStates(8, 64, 4)
    batch = build(step([]), states, GraphKey(kind, 8, 8))
    a = batch.attention
    assert a.query_start_loc[-1] == 8
    assert (a.block_table == NULL_BLOCK).all()
    assert set(a.slot_mapping.tolist()) <= {4, 5, 6, 7}
    assert a.seq_lens.tolist() == ([1] * 8 if kind is Kind.DECODE else [8] + [0] * 7)
    assert len(batch.logits_indices) == 0


def test_a_step_of_unfinished_chunks_samples_nothing():
    states = RequestStates(1, 64, 4)
    so = step([(0, 0, 4, False)], new=[new_row(0, range(10), block_ids=[2])])
    batch = build(so, states)
    assert batch.logits_indices.tolist() == []
    assert batch.sample_rows.tolist() == []


@pytest.mark.parametrize(
    "key",
    [
        GraphKey(Kind.DECODE, 2, 2),
        GraphKey(Kind.DECODE, 8, 7),
        GraphKey(Kind.RAGGED, 8, 5),
        GraphKey(Kind.SEGMENTED, 4, 9),
    ],
)
def test_a_key_that_does_not_hold_the_step_is_refused(key):
    with pytest.raises(AssertionError):
        build(*decode_states([3, 9, 4, 17, 8]), key)


def test_prompt_spans_end_before_the_last_prompt_token():
    states, spans = RequestStates(2, 64, 4), []
    tokens = list(range(13))
    new = [
        new_row(1, range(4), block_ids=[9], prompt=4),
        new_row(0, tokens, block_ids=[2, 3, 4, 5], prompt_logprobs=0),
    ]
    for computed, count in ((0, 4), (4, 4), (8, 4), (12, 1)):
        scheduled = [(1, 3, 1, True)] if computed == 0 else []
        scheduled.append((0, computed, count, computed == 12))
        spans.append(build(step(scheduled, new=new if computed == 0 else ()), states).prompt_spans)
    assert spans == [
        [PromptSpan(0, 1, 1, 4)],
        [PromptSpan(0, 0, 5, 4)],
        [PromptSpan(0, 0, 9, 4)],
        [],
    ]


@pytest.mark.parametrize("seed", range(4))
def test_padded_builds_equal_exact_ones_for_the_real_part(seed):
    schedule = RandomSchedule(seed)
    states = RequestStates(6, 40, 4)
    exact_buffers, padded_buffers = make_buffers(states), make_buffers(states)
    for _ in range(80):
        so = schedule.next_step()
        states.apply(so)
        exact = InputBatch.build(so, states, exact_buffers, EAGER)
        T, R = so.num_tokens, so.num_reqs
        keys = [GraphKey(Kind.SEGMENTED, T + int(schedule.rng.integers(20)), 0)]
        keys.append(GraphKey(Kind.RAGGED, T + int(schedule.rng.integers(20)), 7))
        if T == R:
            keys.append(GraphKey(Kind.DECODE, 7, 7))
        for key in keys:
            padded = InputBatch.build(so, states, padded_buffers, key)
            assert_same_real_part(exact, padded, T, R)
            assert_legal_padding(padded, T, R)
        sampled = schedule.rng.integers(1, 50, int(so.samples.sum())).astype(np.int32)
        states.write_tokens(exact.sample_rows, exact.sample_positions, sampled)
        schedule.sampled(so, sampled)


def assert_same_real_part(exact, padded, T, R):
    for name, size in (("input_ids", T), ("positions", T), ("logits_indices", None)):
        assert torch.equal(getattr(exact, name), getattr(padded, name)[:size]), name
    for name, size in (
        ("slot_mapping", T),
        ("query_start_loc", R + 1),
        ("seq_lens", R),
        ("block_table", R),
    ):
        a, b = getattr(exact.attention, name), getattr(padded.attention, name)
        assert torch.equal(a, b[:size]), name
    assert np.array_equal(exact.sample_rows, padded.sample_rows)
    assert np.array_equal(exact.sample_positions, padded.sample_positions)


def assert_legal_padding(batch, T, R):
    a = batch.attention
    starts, lens = a.query_start_loc_cpu, a.seq_lens_cpu
    assert starts[-1] == batch.num_tokens_padded == batch.key.num_tokens
    assert (np.diff(starts) >= 0).all()
    assert (lens >= np.diff(starts)).all()
    assert ((lens == 0) == (np.diff(starts) == 0)).all()
    assert (a.block_table[R:] == NULL_BLOCK).all()
    assert set((a.slot_mapping[T:] // 4).tolist()) <= {TRASH_BLOCK}
    assert a.max_query_len == np.diff(starts).max()
    assert a.max_seq_len == lens.max()
