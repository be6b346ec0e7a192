"""Q8_0 weights: packed ones against plain torch on every instruction set, and what is packed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from runtime.ops import Embedding, GatedLinear, Linear, Q8Weight, kernel_problem, pack
from runtime.ops.memory import WeightMemory
from runtime.ops.native.linear import Panels
from runtime.ops.weights import PackedWeight
from tests.unit.ops.native_ops import ISAS, check_near, needs_compiler, ops_of, random

ROWS = [0, *range(1, 41)]
SHAPES = [(32, 32), (96, 64), (7, 32), (130, 160), (33, 1024)]
FIXED_POINT = 1 / 32639 / 2
"""The most that an activation is off where it becomes an integer, relative to its row's largest."""
BFLOAT16_ROUNDING = 2.0**-8


def q8_0(
    outputs: int, inputs: int, *, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Q8Weight:
    """Integers over the whole range, scales from 2^-24 (the smallest float16 there is) to 1/16."""
    generator = torch.Generator().manual_seed(seed)
    integers = torch.randint(-128, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    exponents = torch.randint(-24, -4, (outputs, inputs // 32), generator=generator)
    return Q8Weight(integers, torch.exp2(exponents.float()).half(), dtype)


def packed(isa: str, weight: Q8Weight, *, is_gated: bool = False) -> Panels:
    memory = WeightMemory(2 * weight.integers.nbytes + (1 << 16))
    return PackedWeight(ops_of(isa), weight, memory, is_gated=is_gated).panels


def exact(x: Tensor, weight: Q8Weight, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product in float64, and how far the kernels may be off before bfloat16 rounds it."""
    widened = Q8Weight(weight.integers, weight.scales, torch.float64).plain()
    out = x.double() @ widened.T
    largest = x.double().abs().amax(1, keepdim=True)
    bound = largest * widened.abs().sum(1) * (FIXED_POINT + 1e-6)
    return (out if bias is None else out + bias.double()), bound


def check_within(actual: Tensor, expected: Tensor, bound: Tensor) -> None:
    assert actual.dtype is torch.bfloat16
    assert actual.shape == expected.shape
    off = (actual.double() - expected).abs() - bound - expected.abs() * BFLOAT16_ROUNDING
    assert not off.numel() or off.max() <= 1e-30


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(isa: str, shape: tuple[int, int]) -> None:
    weight = q8_0(*shape)
    panels = packed(isa, weight)
    assert torch.equal(ops_of(isa).unpack(panels.values, panels), weight.plain())
    for rows in ROWS:
        for bias in (None, random(shape[0], dtype=torch.bfloat16, seed=2)):
            x = random(rows, shape[1] + 8, dtype=torch.bfloat16, seed=rows)[:, : shape[1]]
            check_within(ops_of(isa).linear(x, panels, bias), *exact(x, weight, bias))


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [16, 24, 72])
def test_gated(isa: str, half: int) -> None:
    weight = q8_0(2 * half, 64)
    panels = packed(isa, weight, is_gated=True)
    assert torch.equal(ops_of(isa).unpack(panels.values, panels), weight.plain())
    for rows in (1, 13, 33):
        for bias in (None, random(2 * half, dtype=torch.bfloat16, seed=2)):
            x = random(rows, 64, dtype=torch.bfloat16, seed=rows)
            gate, up = exact(x, weight, bias)[0].chunk(2, -1)
            expected = (functional.silu(gate) * up).bfloat16()
            check_near(ops_of(isa).linear(x, panels, bias), expected)


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_depends_on_neither_the_others_nor_the_threads(isa: str) -> None:
    panels = packed(isa, q8_0(130, 64))
    x = random(300, 64, dtype=torch.bfloat16)
    whole = ops_of(isa).linear(x, panels, None)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            for count in (1, 3, 14, 16, 17, 100):
                assert torch.equal(ops_of(isa).linear(x[-count:], panels, None), whole[-count:])
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(isa: str, wrong: float) -> None:
    panels = packed(isa, q8_0(32, 64))
    x = random(20, 64, dtype=torch.bfloat16)
    x[7, 50] = wrong
    finite = ops_of(isa).linear(x, panels, None).isfinite().all(1)
    assert finite.tolist() == [row != 7 for row in range(20)]


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_zeros_and_the_smallest_rows(isa: str) -> None:
    weight = q8_0(32, 64)
    weight.integers[3] = 0
    panels = packed(isa, weight)
    x = random(3, 64, dtype=torch.bfloat16)
    x[1], x[2] = 0, torch.full((64,), 1e-38)
    out = ops_of(isa).linear(x, panels, None)
    assert not out[1].any()
    assert not out[:, 3].any()
    assert out[0].any()
    assert out[2].abs().max() < 1e-30


@needs_compiler
def test_sums_of_the_largest_values_do_not_overflow() -> None:
    weight = Q8Weight(
        torch.full((32, 131072), -128, dtype=torch.int8),
        torch.full((32, 4096), 0.5, dtype=torch.float16),
        torch.bfloat16,
    )
    weight.integers[1] = 127
    x = torch.full((2, 131072), 2.0, dtype=torch.bfloat16)
    x[1] = -2
    for isa in ISAS:
        check_within(ops_of(isa).linear(x, packed(isa, weight), None), *exact(x, weight, None))


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_embedding_out_of_panels(isa: str) -> None:
    table = q8_0(50, 64)
    panels = packed(isa, table)
    ids = torch.tensor([49, 0, 31, 32, 31])
    for given in (ids, ids.int()):
        out = ops_of(isa).packed_embedding(given, panels)
        assert torch.equal(out, table.plain()[ids])
        assert torch.equal(table.rows(given), table.plain()[ids])


@needs_compiler
def test_packed_beside_16_bits_and_one_copy_kept() -> None:
    """A mixed model: Q8_0 and bfloat16 matrices in one stretch of memory."""
    layers = [
        Linear(q8_0(96, 64), random(96, dtype=torch.bfloat16, seed=1)),
        GatedLinear(q8_0(64, 64)),
        Linear(random(32, 64, dtype=torch.bfloat16)),
        Linear(q8_0(70, 64)),
    ]
    xs = random(5, 64, dtype=torch.bfloat16)
    expected = [layer(xs) for layer in layers]
    form = layers[0].form
    assert isinstance(form, Q8Weight)
    storage = weakref.ref(form.integers)
    embedding, ids = Embedding(layers[3]), torch.tensor([69, 3])
    rows = embedding(ids)
    pack(layers, int8=False)
    del form
    gc.collect()
    assert storage() is None
    assert all(isinstance(layer.form, PackedWeight) for layer in layers)
    for layer, plain in zip(layers, expected, strict=True):
        check_near(layer(xs), plain, 1.2e-2)
    assert torch.equal(embedding(ids), rows)
    assert [layer.form.num_bytes for layer in layers] == [96 * 68, 64 * 68, 32 * 128, 96 * 68]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_types_are_widened_at_each_call(dtype: torch.dtype) -> None:
    layer = Linear(q8_0(96, 64, dtype=dtype))
    pack([layer], int8=False)
    assert isinstance(layer.form, Q8Weight)
    assert layer.form.num_bytes == 96 * 68
    x = random(3, 64, dtype=dtype)
    assert torch.equal(layer(x), functional.linear(x, layer.form.plain()))
    assert layer.form.plain().dtype is dtype


@needs_compiler
@pytest.mark.parametrize(
    ("device", "dtype", "why"),
    [
        ("cpu", torch.bfloat16, ""),
        ("cpu", torch.float32, "for bfloat16, the type is float32"),
        ("cuda", torch.bfloat16, "for the CPU, the device is cuda"),
    ],
)
def test_where_kernels_serve(device: str, dtype: torch.dtype, why: str) -> None:
    problem = kernel_problem(torch.device(device), dtype)
    assert why in problem
    assert bool(problem) == bool(why)
