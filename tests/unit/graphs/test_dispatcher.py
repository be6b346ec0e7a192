"""From real sizes to keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_backends import Support
from graphs import Dispatcher, GraphKey, Kind, load_mode

PLAIN = Support(ok=True)
BUCKETED_KV = Support(ok=True, bucketed_kv=True)


def dispatcher(
    decode: str = "padded_eager",
    mixed: str = "padded_eager",
    support: Support = PLAIN,
    max_num_seqs: int = 20,
    max_num_batched_tokens: int = 300,
    **kwargs,
) -> Dispatcher:
    return Dispatcher(
        load_mode(decode),
        load_mode(mixed),
        support,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        **kwargs,
    )


def test_one_token_each_goes_to_decode() -> None:
    assert dispatcher().dispatch(5, 5, 1) == GraphKey(Kind.DECODE, 8, 8)


def test_any_chunk_goes_to_mixed() -> None:
    assert dispatcher().dispatch(59, 2, 58) == GraphKey(Kind.SEGMENTED, 64, 3)


def test_no_tail_row_without_padding() -> None:
    assert dispatcher().dispatch(64, 2, 63) == GraphKey(Kind.SEGMENTED, 64, 2)


def test_decode_goes_to_mixed_where_the_decode_mode_cannot() -> None:
    class Refuses:
        kind_of_decode = None
        pads_decode = True

    d = Dispatcher(
        Refuses,  # type: ignore[arg-type]
        load_mode("padded_eager"),
        PLAIN,
        max_num_seqs=20,
        max_num_batched_tokens=300,
    )
    assert d.dispatch(16, 16, 1) == GraphKey(Kind.SEGMENTED, 16, 16)


def test_ragged_rows_leave_one_for_the_tail() -> None:
    d = dispatcher("emulated", "emulated_ragged")
    assert d.dispatch(59, 20, 40) == GraphKey(Kind.RAGGED, 64, 21)
    assert d.dispatch(13, 12, 2) == GraphKey(Kind.RAGGED, 16, 16)


def test_eager_where_asked_for_has_no_reason() -> None:
    d = dispatcher("eager", "eager")
    assert d.dispatch(59, 2, 58) == GraphKey(Kind.EAGER, 59, 2)
    assert d.dispatch(3, 3, 1) == GraphKey(Kind.EAGER, 3, 3)
    assert not d.stats().eager_reasons


def test_eager_above_twice_the_tokens_is_counted() -> None:
    d = dispatcher()
    assert d.dispatch(7, 2, 6).kind is Kind.EAGER
    assert d.dispatch(8, 2, 7).kind is Kind.SEGMENTED
    assert d.stats().eager_reasons == {"padding above 2x": 1}


def test_eager_above_the_largest_is_counted() -> None:
    d = dispatcher()
    key = d.dispatch(301, 2, 300)
    assert key == GraphKey(Kind.EAGER, 301, 2, eager_reason="above the largest bucket")
    assert d.stats().eager_reasons == {"above the largest bucket": 1}


@pytest.mark.case("GP01")
@pytest.mark.parametrize("max_num_seqs", [20, 12])
def test_a_maximum_off_the_grid_has_its_bucket(max_num_seqs: int) -> None:
    d = dispatcher(max_num_seqs=max_num_seqs, sizes=[1, 2, 4, 8, 16])
    for n in range(9, max_num_seqs + 1):
        key = d.dispatch(n, n, 1)
        assert key.kind is Kind.DECODE
        assert key.num_tokens == (16 if n <= 16 < max_num_seqs else max_num_seqs)


@pytest.mark.case("GP03")
@pytest.mark.parametrize("sizes", [[], [512]])
def test_without_sizes_every_step_is_eager(sizes: list[int]) -> None:
    d = dispatcher(sizes=sizes)
    assert d.dispatch(18, 18, 1).kind is Kind.EAGER
    assert d.dispatch(59, 2, 58).kind is Kind.EAGER
    assert d.stats().eager_reasons == {"no bucket size fits": 2}
    assert d.capture_keys() == []
    assert d.max_tokens_padded == 300


def test_sizes_too_large_for_decode_still_serve_mixed() -> None:
    d = dispatcher(sizes=[128])
    assert d.dispatch(18, 18, 1).eager_reason == "no bucket size fits"
    assert d.dispatch(100, 2, 99) == GraphKey(Kind.SEGMENTED, 128, 3)


def test_kv_classes_of_full_graphs() -> None:
    d = dispatcher("emulated", "emulated_ragged", support=BUCKETED_KV, max_model_len=3000)
    assert d.dispatch(5, 5, 1, 1024).kv_class == 1024
    assert d.dispatch(5, 5, 1, 1025).kv_class == 2048
    assert d.dispatch(5, 5, 1, 3000).kv_class == 3000
    assert d.dispatch(59, 2, 58, 100) == GraphKey(Kind.RAGGED, 64, 21, 1024)
    assert d.dispatch(5, 5, 1, 3001).eager_reason == "longer than the largest kv class"


def test_segmented_graphs_have_no_kv_class() -> None:
    d = dispatcher(support=BUCKETED_KV, max_model_len=3000)
    assert d.dispatch(59, 2, 58, 2000) == GraphKey(Kind.SEGMENTED, 64, 3)


def test_capture_keys_are_largest_first_and_token_kinds_first() -> None:
    keys = dispatcher(max_num_seqs=4, max_num_batched_tokens=40).capture_keys()
    assert [(key.kind, key.num_tokens) for key in keys] == [
        (Kind.SEGMENTED, 40),
        (Kind.SEGMENTED, 32),
        (Kind.SEGMENTED, 16),
        (Kind.DECODE, 4),
        (Kind.DECODE, 2),
        (Kind.DECODE, 1),
    ]


def test_decode_buckets_of_a_token_kind_are_small_too() -> None:
    d = dispatcher("segmented", "segmented")
    assert d.dispatch(3, 3, 1) == GraphKey(Kind.SEGMENTED, 4, 4)
    assert len({key.graph for key in d.capture_keys()}) == len(d.capture_keys())


def test_counts() -> None:
    d = dispatcher()
    d.dispatch(5, 5, 1)
    d.dispatch(6, 6, 1)
    d.dispatch(59, 2, 58)
    d.dispatch(3, 1, 3)
    stats = d.stats()
    assert stats.num_steps == 4
    assert stats.num_tokens == 73
    assert stats.num_tokens_padded == 8 + 8 + 64 + 3
    assert stats.padding_share == pytest.approx(10 / 83)
    assert stats.buckets == {"decode(8 tokens, 8 requests)": 2, "segmented(64 tokens)": 1}


def test_no_steps_have_no_padding() -> None:
    assert dispatcher().stats().padding_share == 0.0


MODES = [
    ("padded_eager", "padded_eager"),
    ("emulated", "emulated_ragged"),
    ("emulated_ragged", "emulated_ragged"),
    ("segmented", "segmented"),
    ("eager", "padded_eager"),
]


@pytest.mark.parametrize(("decode", "mixed"), MODES)
@given(data=st.data())
def test_padding_rules(decode: str, mixed: str, data: st.DataObject) -> None:
    max_num_seqs = data.draw(st.integers(1, 40))
    budget = data.draw(st.integers(max_num_seqs, 600))
    support = data.draw(st.sampled_from([PLAIN, BUCKETED_KV]))
    max_model_len = data.draw(st.integers(1, 5000))
    d = dispatcher(decode, mixed, support, max_num_seqs, budget, max_model_len=max_model_len)
    num_reqs = data.draw(st.integers(1, max_num_seqs))
    num_tokens = data.draw(st.integers(num_reqs, budget))
    longest = 1 if num_tokens == num_reqs else num_tokens - num_reqs + 1
    max_seq_len = data.draw(st.integers(1, max_model_len))
    key = d.dispatch(num_tokens, num_reqs, longest, max_seq_len)

    assert num_tokens <= key.num_tokens <= 2 * num_tokens
    assert key.num_tokens <= d.max_tokens_padded
    assert num_reqs <= key.num_reqs <= d.max_reqs_padded
    if key.kind is Kind.EAGER:
        assert key.num_tokens == num_tokens
        assert key.num_reqs == num_reqs
    elif key.kind is Kind.DECODE:
        assert longest == 1
        assert key.num_reqs == key.num_tokens
    else:
        assert key.num_reqs > num_reqs or key.num_tokens == num_tokens
    if key.kind in (Kind.DECODE, Kind.RAGGED) and support.bucketed_kv:
        assert max_seq_len <= key.kv_class <= max_model_len or key.kv_class == 1024
    if key.kind is not Kind.EAGER:
        assert key.graph in {captured.graph for captured in d.capture_keys()}
