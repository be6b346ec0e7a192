"""The comparison of replays with eager steps: what each type allows, and what none does."""

import pytest
import torch
from torch import Tensor

from graphs import GraphError, GraphKey, Kind
from graphs._options import COMPARE_TOLERANCE, check_equal

KEY = GraphKey(Kind.DECODE, 4, 4)
TYPES = list(COMPARE_TOLERANCE)


def rows(dtype: torch.dtype) -> Tensor:
    """[4, 1000] with a few large columns, as hidden states have."""
    hidden = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    hidden[:, ::100] *= 30
    return hidden.to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_rounding_of_the_type_is_allowed(dtype: torch.dtype) -> None:
    eager = rows(dtype)
    replayed = eager * (1 + 2 * torch.finfo(dtype).eps)
    assert not torch.equal(replayed, eager)
    check_equal(KEY, replayed, eager)


@pytest.mark.parametrize("dtype", TYPES)
def test_another_row_is_found(dtype: torch.dtype) -> None:
    eager = rows(dtype)
    replayed = eager.clone()
    replayed[2] = eager[1]
    with pytest.raises(GraphError, match=r"decode\(4 .* in 1 of 4 rows, the first is 2; largest "):
        check_equal(KEY, replayed, eager)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf, -torch.inf])
def test_a_row_that_was_never_written_is_found(dtype: torch.dtype, value: float) -> None:
    eager = rows(dtype)
    replayed = eager.clone()
    replayed[3] = value
    with pytest.raises(GraphError, match=r"in 1 of 4 rows, the first is 3"):
        check_equal(KEY, replayed, eager)
    with pytest.raises(GraphError, match=r"in 1 of 4 rows, the first is 3"):
        check_equal(KEY, eager, replayed)


def test_equal_rows_are_equal_whatever_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPARE_TOLERANCE, torch.float32, 0.0)
    eager = rows(torch.float32)
    eager[0], eager[1, 5], eager[2, 7], eager[3] = torch.nan, torch.inf, torch.nan, 0.0
    check_equal(KEY, eager.clone(), eager)


def test_the_tolerance_is_a_share_of_a_rows_length(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = rows(torch.float32)
    monkeypatch.setitem(COMPARE_TOLERANCE, torch.float32, 0.0)
    with pytest.raises(GraphError, match=r"in 4 of 4 rows"):
        check_equal(KEY, eager * (1 + 1e-6), eager)
    monkeypatch.setitem(COMPARE_TOLERANCE, torch.float32, 0.11)
    check_equal(KEY, eager * 1.1, eager)
    monkeypatch.setitem(COMPARE_TOLERANCE, torch.float32, 0.09)
    with pytest.raises(
        GraphError, match=r"largest difference 0\.1 of a row's length, allowed 0\.09"
    ):
        check_equal(KEY, eager * 1.1, eager)
