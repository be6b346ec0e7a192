"""Sizes, and the look-up of every n."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import Buckets, GraphError
from graphs._dispatch.buckets import decode_sizes, kv_class_sizes, normalise_sizes, token_sizes


@pytest.mark.parametrize(
    ("maximum", "expected"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (32, [1, 2, 4, 8, 16, 24, 32]),
    ],
)
def test_decode_sizes(maximum: int, expected: list[int]) -> None:
    assert decode_sizes(maximum) == expected


@pytest.mark.parametrize(
    ("maximum", "expected"),
    [
        (7, [7]),
        (64, [16, 32, 64]),
        (300, [16, 32, 64, 128, 256, 300]),
        (1024, [16, 32, 64, 128, 256, 512, 768, 1024]),
    ],
)
def test_token_sizes(maximum: int, expected: list[int]) -> None:
    assert token_sizes(maximum) == expected


@pytest.mark.parametrize(
    ("max_model_len", "expected"),
    [(100, [100]), (1024, [1024]), (5000, [1024, 2048, 4096, 5000])],
)
def test_kv_class_sizes(max_model_len: int, expected: list[int]) -> None:
    assert sorted(kv_class_sizes(max_model_len)) == expected


@pytest.mark.parametrize("maximum", [1, 5, 64, 255, 256, 257, 1000, 1024])
@pytest.mark.parametrize("sizes_of", [decode_sizes, token_sizes, kv_class_sizes])
def test_every_n_up_to_the_largest(sizes_of, maximum: int) -> None:
    sizes = sizes_of(maximum)
    buckets = Buckets.of(sizes)
    assert len(set(sizes)) == len(sizes)
    assert buckets.largest == maximum
    for n in range(1, maximum + 1):
        assert buckets.pad(n) == min(size for size in sizes if size >= n)
    assert buckets.pad(maximum + 1) is None


@pytest.mark.parametrize("maximum", [2048, 8192, 16384])
def test_large_token_sizes_waste_little(maximum: int) -> None:
    buckets = Buckets.of(token_sizes(maximum))
    assert all(buckets.pad(n) <= 1.25 * n for n in range(1024, maximum + 1))
    assert len(buckets.sizes) < 40


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_any_order_and_duplicates(sizes: list[int]) -> None:
    buckets = Buckets.of(sizes)
    assert list(buckets.sizes) == sorted(set(sizes))
    for n in range(1, max(sizes) + 1):
        assert buckets.pad(n) == min(size for size in sizes if size >= n)


def test_no_sizes() -> None:
    assert Buckets.of([]).pad(1) is None
    assert Buckets.of([]).largest == 0


@pytest.mark.case("GP05")
def test_duplicates_and_disorder_are_normalised() -> None:
    assert normalise_sizes([8, 1, 4, 4], 8, "x") == [1, 4, 8]


@pytest.mark.case("GP05")
@pytest.mark.parametrize("wrong", [0, -2, True, 2.0, "4", None])
def test_what_is_no_positive_int_is_refused(wrong: object) -> None:
    with pytest.raises(GraphError, match=r"graphs\.sizes: .* from 1 up"):
        normalise_sizes([8, 1, 4, 4, wrong], 8, "x")  # type: ignore[list-item]


@pytest.mark.case("GP01")
def test_the_maximum_is_always_a_bucket() -> None:
    assert normalise_sizes([1, 2, 4, 8, 16], 20, "x") == [1, 2, 4, 8, 16, 20]
    assert normalise_sizes([1, 2, 4, 8, 16], 12, "x") == [1, 2, 4, 8, 12]


@pytest.mark.case("GP03")
@pytest.mark.parametrize("sizes", [[], [128]])
def test_no_size_left_warns(sizes: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert normalise_sizes(sizes, 64, "scheduler.max_num_seqs") == []
    assert "graphs are off" in caplog.text
    assert "scheduler.max_num_seqs = 64" in caplog.text
