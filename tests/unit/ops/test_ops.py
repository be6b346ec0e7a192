"""Each op against its definition, written out in float64 or by index."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attention_backends._interface import LayerKV
from runtime.ops import (
    Linear,
    add_rms_norm,
    head_rms_norm,
    rms_norm,
    rotation,
    silu_and_mul,
    write_kv,
)
from runtime.ops.rotary import rotary

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
TOKENS = pytest.mark.parametrize("num_tokens", [0, 1, 7])


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@DTYPES
@TOKENS
def test_rms_norm(dtype: torch.dtype, num_tokens: int) -> None:
    x, weight = random(num_tokens, 24, dtype=dtype), random(24, dtype=dtype, seed=1)
    before = x.clone()
    actual = rms_norm(x, weight, EPS)
    near(actual, normed(x, weight))
    assert actual.dtype == dtype
    assert torch.equal(x, before)


@DTYPES
@TOKENS
def test_add_rms_norm_updates_the_residual(dtype: torch.dtype, num_tokens: int) -> None:
    x, residual = random(num_tokens, 24, dtype=dtype), random(num_tokens, 24, dtype=dtype, seed=1)
    weight = random(24, dtype=dtype, seed=2)
    before, total = x.clone(), x + residual
    actual = add_rms_norm(x, residual, weight, EPS)
    near(actual, normed(total, weight))
    assert torch.equal(residual, total)
    assert torch.equal(x, before)


def test_rms_norm_of_large_half_values_does_not_overflow() -> None:
    x = torch.full((1, 16), 3e4, dtype=torch.float16)
    near(rms_norm(x, torch.ones(16, dtype=torch.float16), EPS), torch.ones(1, 16))


@DTYPES
@TOKENS
def test_head_norm_has_a_row_for_each_head(dtype: torch.dtype, num_tokens: int) -> None:
    fused = random(num_tokens, 5, 8, dtype=dtype)
    x, weight = fused[:, :3], random(3, 8, dtype=dtype, seed=1)
    near(head_rms_norm(x, weight, EPS), normed(x, weight))


@DTYPES
@TOKENS
def test_rotary_turns_pairs_half_a_head_apart(dtype: torch.dtype, num_tokens: int) -> None:
    heads, size = 3, 8
    x = random(num_tokens, heads + 2, size, dtype=dtype)[:, :heads]
    positions = torch.arange(num_tokens) * 37 + 5
    frequencies = 100.0 ** -(torch.arange(0, size, 2) / size)
    turned = rotary(x, rotation(positions, frequencies, 1.0, dtype))
    expected = torch.empty(num_tokens, heads, size, dtype=torch.float64)
    for token, position in enumerate(positions.tolist()):
        for pair, frequency in enumerate(frequencies.tolist()):
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            first, second = x[token, :, pair].double(), x[token, :, pair + size // 2].double()
            expected[token, :, pair] = first * cos - second * sin
            expected[token, :, pair + size // 2] = second * cos + first * sin
    near(turned, expected)
    assert turned.is_contiguous()


def test_rotation_scale_multiplies_both() -> None:
    x, frequencies = random(4, 2, 8), torch.tensor([1.0, 0.5, 0.1, 0.01])
    positions = torch.arange(4)
    plain = rotary(x, rotation(positions, frequencies, 1.0, torch.float32))
    near(rotary(x, rotation(positions, frequencies, 0.7, torch.float32)), plain * 0.7)


def test_position_zero_is_no_rotation_and_far_positions_keep_their_angle() -> None:
    x, frequencies = random(1, 2, 4), torch.tensor([1.0, 1e-3])
    zero = rotation(torch.tensor([0]), frequencies, 1.0, torch.float32)
    assert torch.equal(rotary(x, zero), x)
    far = rotation(torch.tensor([131071]), frequencies, 1.0, torch.bfloat16)
    assert far.cos[0, 0, 0].item() == pytest.approx(math.cos(131071), abs=1e-2)


@DTYPES
@TOKENS
def test_silu_and_mul(dtype: torch.dtype, num_tokens: int) -> None:
    x = random(num_tokens, 2 * 12, dtype=dtype)
    before = x.clone()
    gate, up = x[:, :12].double(), x[:, 12:].double()
    near(silu_and_mul(x), gate / (1 + (-gate).exp()) * up)
    assert torch.equal(x, before)


@pytest.mark.parametrize("has_bias", [True, False])
def test_linear(has_bias: bool) -> None:
    weight, x = random(6, 4), random(3, 4, seed=1)
    bias = random(6, seed=2) if has_bias else None
    expected = x @ weight.T + (bias if bias is not None else 0)
    near(Linear(weight, bias)(x), expected)


def dense_blocks(blocks: int, size: int, heads: int, dim: int) -> Tensor:
    return torch.zeros(blocks, size, heads, dim)


def heads_before_slots(blocks: int, size: int, heads: int, dim: int) -> Tensor:
    return torch.zeros(blocks, heads, size, dim).transpose(1, 2)


def k_and_v_together(blocks: int, size: int, heads: int, dim: int) -> Tensor:
    return torch.zeros(blocks, 2, size, heads, dim)[:, 0]


@pytest.mark.parametrize("layout", [dense_blocks, heads_before_slots, k_and_v_together])
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_write_kv_in_any_layout(layout, num_tokens: int) -> None:
    size, heads, dim = 4, 2, 8
    kv = LayerKV(layout(6, size, heads, dim), layout(6, size, heads, dim))
    fused = random(num_tokens, 3 * heads, dim)
    k, v = fused[:, heads : 2 * heads], fused[:, 2 * heads :]
    slots = torch.tensor([5 * size + 3, 8, 9, 3 * size + 2, 4 * size])[:num_tokens]
    write_kv(k, v, kv, slots)
    for cache, rows in ((kv.k, k), (kv.v, v)):
        expected = torch.zeros(6, size, heads, dim)
        for token, slot in enumerate(slots.tolist()):
            expected[slot // size, slot % size] = rows[token]
        assert torch.equal(cache, expected)


def test_padding_tokens_may_share_a_slot() -> None:
    kv = LayerKV(torch.zeros(3, 4, 1, 2), torch.zeros(3, 4, 1, 2))
    k = random(4, 1, 2)
    write_kv(k, k, kv, torch.tensor([8, 4, 4, 4]))
    assert torch.equal(kv.k[2, 0], k[0])
    assert not kv.k[0].any()
    assert not kv.k[2, 1:].any()
    assert kv.k[1, 0].isfinite().all()
