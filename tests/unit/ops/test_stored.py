"""Weights as GGUF files store them: packed ones against the `gguf` library."""

from __future__ import annotations

import functools

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from runtime.models._gguf_names import STORED_TYPES
from runtime.ops import (
    STORED_KINDS,
    Embedding,
    GatedLinear,
    Linear,
    SplitWeight,
    StoredWeight,
    pack,
)
from runtime.ops.memory import WeightMemory
from runtime.ops.native import native_ops
from runtime.ops.native.linear import Panels
from runtime.ops.weights import PackedWeight
from tests.builders import SCALES_AT, stored_bytes
from tests.unit.ops.native_ops import (
    AMX,
    EMULATED,
    ISAS,
    check_near,
    needs_compiler,
    ops_of,
    random,
)

ROWS = [0, *range(1, 10), 17, 33]
FIXED_POINT = 1 / 32639 / 2
BFLOAT16_ROUNDING = 2.0**-8
KINDS = pytest.mark.parametrize("kind", STORED_KINDS)
_OWN = [isa for isa in ISAS if isa not in (AMX, EMULATED)]
ISAS_AND_KINDS = pytest.mark.parametrize(
    ("isa", "kind"),
    [(isa, kind) for isa in _OWN[-2:] for kind in STORED_KINDS]
    + [(isa, kind) for isa in _OWN[:-2] for kind in ("q4_0", "q4_k", "q3_k", "iq4_nl")],
)
"""Every kind by the best instruction set here; by lesser ones one of each shape."""


@functools.cache
def stored(
    kind: str, outputs: int, units: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> StoredWeight:
    """Scales from 2^-24 (the smallest float16 there is) to 1/16."""
    inputs, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    raw = stored_bytes(kind.upper(), outputs, units * inputs, seed=seed, exponents=(-24, -4))
    return StoredWeight(torch.from_numpy(raw), kind, dtype)


def packed(isa: str, weight: StoredWeight, *, is_gated: bool = False) -> Panels:
    memory = WeightMemory(2 * weight.num_bytes + (1 << 20))
    return PackedWeight(ops_of(isa), weight, memory, is_gated=is_gated).panels


def exact(x: Tensor, weight: StoredWeight, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product in float64, and how far the kernels may be off before bfloat16 rounds it."""
    widened = StoredWeight(weight.stored, weight.kind, torch.float64).plain()
    out = x.double() @ widened.T
    largest = x.double().abs().amax(1, keepdim=True)
    bound = largest * (widened.abs().sum(1) * (FIXED_POINT + 2e-6)) + parts_of_sums(x, weight)
    return (out if bias is None else out + bias.double()), bound


def parts_of_sums(x: Tensor, weight: StoredWeight) -> Tensor:
    """Where scale * code and min cancel, float32 rounds both."""
    return x.double().abs().sum(1, keepdim=True) * largest_term(weight) * 2.0**-22


def largest_term(weight: StoredWeight) -> float:
    """What no scale * code and no min is above."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[weight.kind.upper()]]
    units = weight.stored.view(-1, size).numpy()
    scales = [
        units[:, at : at + 2].copy().view(np.float16) for at in SCALES_AT[weight.kind.upper()]
    ]
    return float(np.abs(np.concatenate(scales).astype(np.float64)).max()) * 128 * 128


def check_widened(actual: Tensor, weight: StoredWeight) -> None:
    """To the bit, but where there are mins, whose sum may be rounded once or twice."""
    expected = weight.plain()
    if len(SCALES_AT[weight.kind.upper()]) == 1:
        assert torch.equal(actual, expected)
    else:
        bound = torch.tensor(largest_term(weight) * 2.0**-22)
        check_within(actual, expected.double(), bound)


def check_within(actual: Tensor, expected: Tensor, bound: Tensor) -> None:
    assert actual.dtype is torch.bfloat16
    assert actual.shape == expected.shape
    off = (actual.double() - expected).abs() - bound - expected.abs() * BFLOAT16_ROUNDING
    assert not off.numel() or off.max() <= 1e-30


def test_the_kinds_are_those_that_files_keep() -> None:
    assert {name for name, _, _ in STORED_TYPES.values()} == set(STORED_KINDS)
    for type_id, (name, *sizes) in STORED_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert kind.name == name.upper()
        assert gguf.GGML_QUANT_SIZES[kind] == tuple(sizes)


@needs_compiler
@ISAS_AND_KINDS
def test_linear(isa: str, kind: str) -> None:
    for outputs, units in ((33, 1), (70, 2), (32, 3)):
        weight = stored(kind, outputs, units)
        panels, width = packed(isa, weight), weight.shape[1]
        assert ops_of(isa).of_kind(kind).unit[:2] == tuple(
            gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
        )
        check_widened(ops_of(isa).unpack(panels.values, panels), weight)
        for rows in ROWS:
            for bias in (None, random(outputs, dtype=torch.bfloat16, seed=2)):
                x = random(rows, width + 8, dtype=torch.bfloat16, seed=rows)[:, :width]
                check_within(ops_of(isa).linear(x, panels, bias), *exact(x, weight, bias))


@needs_compiler
@KINDS
def test_gated(kind: str) -> None:
    kernels = native_ops()
    assert kernels is not None
    for half in (16, 24, 72):
        weight = stored(kind, 2 * half, 1)
        layer = GatedLinear(weight, random(2 * half, dtype=torch.bfloat16))
        pack([layer], int8=False)
        assert isinstance(layer.form, PackedWeight)
        check_widened(layer.form.plain(), weight)
        for rows in (1, 13):
            x = random(rows, weight.shape[1], dtype=torch.bfloat16, seed=rows)
            gate, up = exact(x, weight, layer.bias)[0].chunk(2, -1)
            check_near(layer(x), (functional.silu(gate) * up).bfloat16())


@needs_compiler
@ISAS_AND_KINDS
def test_a_row_depends_on_neither_the_others_nor_the_threads(isa: str, kind: str) -> None:
    weight = stored(kind, 66, 1)
    panels = packed(isa, weight)
    x = random(40, weight.shape[1], dtype=torch.bfloat16)
    whole = ops_of(isa).linear(x, panels, None)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            for count in (1, 3, 14, 17):
                assert torch.equal(ops_of(isa).linear(x[-count:], panels, None), whole[-count:])
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["q4_0", "q4_k"])
@pytest.mark.parametrize("isa", _OWN)
def test_what_is_not_finite_stays_in_its_row(isa: str, kind: str, wrong: float) -> None:
    weight = stored(kind, 32, 1)
    x = random(9, weight.shape[1], dtype=torch.bfloat16)
    x[7, 20] = wrong
    finite = ops_of(isa).linear(x, packed(isa, weight), None).isfinite().all(1)
    assert finite.tolist() == [row != 7 for row in range(9)]


@needs_compiler
@KINDS
@pytest.mark.parametrize("ids_type", [torch.int32, torch.int64])
def test_rows_of_a_table(kind: str, ids_type: torch.dtype) -> None:
    weight = stored(kind, 70, 1)
    table = Linear(weight)
    ids = torch.tensor([0, 69, 31, 32], dtype=ids_type)
    before = Embedding(table)(ids)
    assert torch.equal(before, table.form.plain()[ids.long()])
    pack([table], int8=False)
    assert isinstance(table.form, PackedWeight)
    check_widened(
        Embedding(table)(ids), StoredWeight(weight.stored[ids.long()], kind, before.dtype)
    )


@needs_compiler
@pytest.mark.parametrize("bias", [False, True])
def test_parts_of_several_kinds_lie_side_by_side(bias: bool) -> None:
    parts = [stored("q4_k", 40, 1), stored("q6_k", 24, 1)]
    given = random(64, dtype=torch.bfloat16) if bias else None
    split = Linear(SplitWeight(parts), given)
    gated = GatedLinear(SplitWeight([stored("q4_k", 32, 1), stored("q5_k", 32, 1)]), given)
    x = random(5, 256, dtype=torch.bfloat16)
    expected = torch.cat([exact(x, part, None)[0] for part in parts], 1)
    expected = (expected if given is None else expected + given.double()).bfloat16()
    twins = split(x), gated(x)
    pack([split, gated], int8=False)
    assert all(isinstance(part, PackedWeight) for part in split.form.parts)  # type: ignore[attr-defined]
    check_near(split(x), expected)
    check_near(split(x), twins[0], 2e-2)
    check_near(gated(x), twins[1], 2e-2)
    assert split.form.plain().shape == (64, 256)
    assert split.form.num_bytes == sum(
        part.num_bytes
        for part in split.form.parts  # type: ignore[attr-defined]
    )


@needs_compiler
def test_packing_takes_about_the_files_bytes() -> None:
    kernels = native_ops()
    assert kernels is not None
    for kind in STORED_KINDS:
        _, stored_bytes, packed_bytes = kernels.of_kind(kind).unit
        # of Q2_K, two numbers of 4 bits become two bytes
        assert packed_bytes <= 32 * stored_bytes * (1.2 if kind == "q2_k" else 1.06), kind


@needs_compiler
def test_float32_keeps_the_twin() -> None:
    layer = Linear(stored("q4_0", 32, 2, torch.float32))
    form = layer.form
    pack([layer], int8=False)
    assert layer.form is form
