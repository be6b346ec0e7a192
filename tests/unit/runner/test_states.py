import numpy as np
import pytest

from attention_backends import NULL_BLOCK
from runtime.runner.states import RequestStates, slots_of
from tests.unit.runner.helpers import RandomSchedule, ints, new_row, step


class SlowStates:
    """The plain twin: lists and dicts."""

    def __init__(self):
        self.tokens, self.blocks = {}, {}

    def apply(self, so):
        for row in so.freed_rows:
            del self.tokens[row], self.blocks[row]
        for new in so.new_rows:
            self.tokens[new.row], self.blocks[new.row] = list(new.token_ids), list(new.block_ids)
        for row, ids in so.new_block_ids:
            self.blocks[row] += ids


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_slow_twin_over_random_schedules(seed):
    schedule = RandomSchedule(seed)
    fast, slow = RequestStates(6, 40, 4), SlowStates()
    for _ in range(150):
        so = schedule.next_step()
        fast.apply(so)
        slow.apply(so)
        for row in range(6):
            blocks = slow.blocks.get(row, [])
            assert fast.num_blocks[row] == len(blocks)
            assert fast.block_table[row, : len(blocks)].tolist() == blocks
            assert (fast.block_table[row, len(blocks) :] == NULL_BLOCK).all()
            tokens = slow.tokens.get(row, [])
            assert fast.token_ids[row, : len(tokens)].tolist() == tokens
        known = (so.num_computed_tokens + so.num_scheduled_tokens)[so.samples]
        sampled = schedule.rng.integers(1, 50, len(known)).astype(np.int32)
        fast.write_tokens(so.rows[so.samples], known, sampled)
        for row, token in zip(so.rows[so.samples].tolist(), sampled.tolist(), strict=True):
            slow.tokens[row].append(token)
        schedule.sampled(so, sampled)


def test_several_blocks_for_several_rows_at_once():
    states = RequestStates(3, 64, 4)
    states.apply(
        step(
            [(0, 0, 4, True), (1, 0, 4, True), (2, 0, 4, True)],
            new=[new_row(r, range(4), block_ids=[10 + r]) for r in range(3)],
        )
    )
    states.apply(step([(2, 4, 9, True)], blocks=[(2, [20, 21, 22]), (0, [23])]))
    assert states.block_table[:, :5].tolist() == [
        [10, 23, 0, 0, 0],
        [11, 0, 0, 0, 0],
        [12, 20, 21, 22, 0],
    ]
    assert states.num_blocks.tolist() == [2, 1, 4]


def test_a_row_that_is_entered_again_without_being_freed_keeps_nothing():
    states = RequestStates(1, 64, 4)
    states.apply(
        step([(0, 0, 9, True)], new=[new_row(0, range(9), block_ids=[5, 6, 7], prompt_logprobs=1)])
    )
    assert states.prompt_logprobs == {0: 9}
    states.apply(step([(0, 0, 2, True)], new=[new_row(0, range(2), block_ids=[8])]))
    assert states.block_table[0, :4].tolist() == [8, 0, 0, 0]
    assert states.prompt_logprobs == {}


def test_slots_do_not_overflow_32_bits():
    table = ints(2**27)[None]
    assert slots_of(table, ints(0), ints(5), 32).tolist() == [2**32 + 5]


@pytest.mark.case("AT03")
@pytest.mark.parametrize(
    ("length", "block", "offset"),
    [(1, 0, 0), (15, 0, 14), (16, 0, 15), (17, 1, 0), (32, 1, 15), (100, 6, 3)],
)
def test_the_last_token_sits_at_the_right_offset_of_the_last_block(length, block, offset):
    table = np.arange(10, 20, dtype=np.int32)[None]
    slot = slots_of(table, ints(0), ints(length - 1), 16)
    assert slot.tolist() == [(10 + block) * 16 + offset]
