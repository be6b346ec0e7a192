"""Native row kernels against their twins, for every instruction set of this machine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attention_backends import LayerKV, able_isas
from runtime.ops import activation, kv_write, norm, rotary, scores
from tests.unit.ops.native_ops import DTYPES, check_near, needs_compiler, ops_of, random

EPS = 1e-5
TOKENS = pytest.mark.parametrize("num_tokens", [0, 1, 7])
WIDTHS = pytest.mark.parametrize("width", [1, 15, 16, 33, 576])
pytestmark = [needs_compiler, pytest.mark.parametrize("isa", able_isas())]


@DTYPES
@TOKENS
@WIDTHS
def test_norms(isa: str, dtype: torch.dtype, num_tokens: int, width: int) -> None:
    ops, weight = ops_of(isa), random(width, dtype=dtype, seed=2)
    x = random(num_tokens, 2 * width, dtype=dtype)[:, :width]
    check_near(ops.rms_norm(x, weight, EPS), norm.rms_norm(x, weight, EPS))
    ours = random(num_tokens, 2 * width, dtype=dtype, seed=1)
    theirs, before = ours[:, :width].clone(), ours.clone()
    actual = ops.add_rms_norm(x, ours[:, :width], weight, EPS)
    check_near(actual, norm.add_rms_norm(x, theirs, weight, EPS))
    assert torch.equal(ours[:, :width], theirs)
    assert torch.equal(ours[:, width:], before[:, width:])


@DTYPES
def test_norm_keeps_nan_to_its_row(isa: str, dtype: torch.dtype) -> None:
    x = random(3, 40, dtype=dtype)
    x[1, 37] = float("nan")
    out = ops_of(isa).rms_norm(x, torch.ones(40, dtype=dtype), EPS)
    assert out.isnan().all(1).tolist() == [False, True, False]


@DTYPES
@TOKENS
def test_rotation_and_rotary(isa: str, dtype: torch.dtype, num_tokens: int) -> None:
    ops, (heads, size) = ops_of(isa), (3, 40)
    positions = torch.arange(num_tokens) * 18731
    frequencies = 1e4 ** -(torch.arange(0, size, 2) / size)
    turn = ops.rotation(positions, frequencies, 0.7, dtype)
    twin = rotary.rotation(positions, frequencies, 0.7, dtype)
    check_near(turn.cos, twin.cos)
    check_near(turn.sin, twin.sin)
    for weight in (None, random(heads, size, dtype=dtype, seed=1)):
        fused = random(num_tokens, heads + 2, size, dtype=dtype)
        expected = rotary.norm_and_rotary(fused[:, :heads].clone(), twin, weight, EPS)
        before = fused.clone()
        ops.norm_and_rotary(fused[:, :heads], twin, weight, EPS)
        check_near(fused[:, :heads], expected, 2.5e-2 if dtype is torch.bfloat16 else None)
        assert torch.equal(fused[:, heads:], before[:, heads:])


@DTYPES
@TOKENS
@WIDTHS
def test_silu_and_mul(isa: str, dtype: torch.dtype, num_tokens: int, width: int) -> None:
    x = random(num_tokens, 2 * width, dtype=dtype) * 4
    check_near(
        ops_of(isa).silu_and_mul(x), activation.silu_and_mul(x), 1.2e-2 if x.itemsize == 2 else None
    )


def test_silu_at_the_edges(isa: str) -> None:
    gates = torch.tensor([-1e30, -100.0, -88.0, -0.0, 0.0, 88.0, 1e30, float("inf"), float("nan")])
    out = ops_of(isa).silu_and_mul(torch.cat((gates, torch.ones(9)))[None])
    expected = activation.silu_and_mul(torch.cat((gates, torch.ones(9)))[None])
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("are_heads_first", [True, False])
@TOKENS
def test_write_kv(isa: str, dtype: torch.dtype, are_heads_first: bool, num_tokens: int) -> None:
    size, heads, dim = 4, 2, 8

    def cache() -> Tensor:
        if are_heads_first:
            return torch.zeros(6, heads, size, dim, dtype=dtype).transpose(1, 2)
        return torch.zeros(6, 2, size, heads, dim, dtype=dtype)[:, 0]

    ours, twins = LayerKV(cache(), cache()), LayerKV(cache(), cache())
    fused = random(num_tokens, 3 * heads, dim, dtype=dtype)
    k, v = fused[:, heads : 2 * heads], fused[:, 2 * heads :]
    slots = torch.tensor([23, 8, 9, 14, 5, 16, 17])[:num_tokens]
    ops_of(isa).write_kv(k, v, ours, slots)
    kv_write.write_kv(k, v, twins, slots)
    assert torch.equal(ours.k, twins.k)
    assert torch.equal(ours.v, twins.v)


@DTYPES
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64], ids=str)
def test_embedding(isa: str, dtype: torch.dtype, id_dtype: torch.dtype) -> None:
    table = random(11, 24, dtype=dtype)
    ids = torch.tensor([10, 0, 3, 3], dtype=id_dtype)
    assert torch.equal(ops_of(isa).embedding(ids, table), table[ids.long()])


@DTYPES
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("width", [1, 50, 1003])
def test_argmax(isa: str, dtype: torch.dtype, num_threads: int, width: int) -> None:
    logits = (random(6, width + 3, dtype=dtype) * 4).round()[:, :width]  # with ties
    logits[1] = -torch.inf
    logits[2, width // 2] = float("nan")
    logits[3] = 0.0
    logits[3, 0] = -0.0
    logits[4, width - 1] = torch.inf
    with_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        values, ids = ops_of(isa).argmax(logits)
    finally:
        torch.set_num_threads(with_threads)
    expected_values, expected_ids = scores.argmax(logits)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)


@DTYPES
@pytest.mark.parametrize(("width", "count"), [(1, 1), (50, 50), (1003, 1), (1003, 40)])
def test_top_k(isa: str, dtype: torch.dtype, width: int, count: int) -> None:
    logits = (random(5, width, dtype=dtype) * 4).round()
    logits[1] = torch.arange(width)
    logits[2] = -torch.inf
    logits[3, width // 2] = float("nan")
    values, ids = ops_of(isa).top_k(logits, count)
    expected_values, expected_ids = scores.top_k(logits, count)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)
