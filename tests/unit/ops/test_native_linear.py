"""Packed linear layers against plain torch: all instruction sets, emulated tiles, rows, shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attention_backends._host_memory import HUGE_PAGE_BYTES
from runtime.ops.memory import WeightMemory
from runtime.ops.native.linear import Panels
from runtime.ops.weights import Int8Weight, PackedWeight
from tests.unit.ops.native_ops import BY_TILES, ISAS, check_near, needs_compiler, ops_of, random

ROWS = [0, 1, 2, 5, 6, 12, 13, 16, 17, 31, 32, 33, 50]
SHAPES = [(32, 32), (96, 64), (7, 32), (130, 160)]
INT8_TOLERANCE = 1e-2
pytestmark = needs_compiler


def packed(isa: str, weight: Tensor, *, is_gated: bool = False, int8: bool = False) -> Panels:
    memory = WeightMemory(4 * weight.nbytes + (1 << 16))
    return PackedWeight(ops_of(isa), weight, memory, is_gated=is_gated, int8=int8).panels


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x.double() @ weight.double().T
    return out if bias is None else out + bias.double()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_linear(isa: str, shape: tuple[int, int], int8: bool) -> None:
    weight = random(*shape, dtype=torch.bfloat16) / 8
    kept = Int8Weight(weight).plain() if int8 else weight
    panels = packed(isa, weight, int8=int8)
    assert torch.equal(ops_of(isa).unpack(panels.values, panels), kept)
    for rows in ROWS:
        for bias in (None, random(shape[0], dtype=torch.bfloat16, seed=2)):
            x = random(rows, shape[1] + 8, dtype=torch.bfloat16, seed=rows)[:, : shape[1]]
            expected = exact(x, kept, bias).bfloat16()
            check_near(
                ops_of(isa).linear(x, panels, bias), expected, INT8_TOLERANCE if int8 else None
            )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [16, 24, 72])
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_gated(isa: str, half: int, int8: bool) -> None:
    weight = random(2 * half, 64, dtype=torch.bfloat16) / 4
    kept = Int8Weight(weight).plain() if int8 else weight
    panels = packed(isa, weight, is_gated=True, int8=int8)
    assert torch.equal(ops_of(isa).unpack(panels.values, panels), kept)
    for rows in (1, 13, 33):
        for bias in (None, random(2 * half, dtype=torch.bfloat16, seed=2)):
            x = random(rows, 64, dtype=torch.bfloat16, seed=rows)
            gate, up = exact(x, kept, bias).chunk(2, -1)
            expected = (functional.silu(gate) * up).bfloat16()
            check_near(
                ops_of(isa).linear(x, panels, bias), expected, INT8_TOLERANCE if int8 else None
            )


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa not in BY_TILES])
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_a_row_does_not_depend_on_the_others(isa: str, int8: bool) -> None:
    panels = packed(isa, random(96, 64, dtype=torch.bfloat16), int8=int8)
    x = random(300, 64, dtype=torch.bfloat16)
    whole = ops_of(isa).linear(x, panels, None)
    for count in (1, 3, 14, 17, 100):
        assert torch.equal(ops_of(isa).linear(x[-count:], panels, None), whole[-count:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_threads_share_the_work(isa: str, int8: bool) -> None:
    panels = packed(isa, random(130, 64, dtype=torch.bfloat16), int8=int8)
    before = torch.get_num_threads()
    for rows in (1, 16, 17, 40):
        x = random(rows, 64, dtype=torch.bfloat16)
        results = []
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            results.append(ops_of(isa).linear(x, panels, None))
        torch.set_num_threads(before)
        assert torch.equal(*results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(isa: str, int8: bool, wrong: float) -> None:
    panels = packed(isa, random(32, 64, dtype=torch.bfloat16), int8=int8)
    x = random(20, 64, dtype=torch.bfloat16)
    x[7, 50] = wrong
    finite = ops_of(isa).linear(x, panels, None).isfinite().all(1)
    assert finite.tolist() == [row != 7 for row in range(20)]


@pytest.mark.parametrize("isa", ISAS)
def test_int8_of_zeros_is_zero(isa: str) -> None:
    weight = random(32, 64, dtype=torch.bfloat16)
    weight[3] = 0
    panels = packed(isa, weight, int8=True)
    x = random(3, 64, dtype=torch.bfloat16)
    x[1] = 0
    out = ops_of(isa).linear(x, panels, None)
    assert not out[1].any()
    assert not out[:, 3].any()
    assert out[0].any()


@pytest.mark.parametrize("isa", ISAS)
def test_int8_of_rows_too_small_to_invert(isa: str) -> None:
    panels = packed(isa, random(32, 64, dtype=torch.bfloat16), int8=True)
    x = torch.full((3, 64), 1e-37, dtype=torch.bfloat16)
    assert ops_of(isa).linear(x, panels, None).abs().max() < 1e-34


def test_int8_sums_of_the_largest_values_do_not_overflow() -> None:
    weight = torch.full((32, 65536), 3.0, dtype=torch.bfloat16)
    weight[1] = -3
    x = torch.full((2, 65536), 2.0, dtype=torch.bfloat16)
    x[1] = -2
    for isa in ISAS:
        out = ops_of(isa).linear(x, packed(isa, weight, int8=True), None)
        check_near(out, exact(x, weight, None).bfloat16(), INT8_TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_embedding_out_of_panels(isa: str, int8: bool) -> None:
    table = random(50, 64, dtype=torch.bfloat16)
    kept = Int8Weight(table).plain() if int8 else table
    panels = packed(isa, table, int8=int8)
    ids = torch.tensor([49, 0, 31, 32, 31])
    for given in (ids, ids.int()):
        out = ops_of(isa).packed_embedding(given, panels)
        assert torch.equal(out, kept[ids])


def test_memory_is_aligned_and_counted() -> None:
    sizes = [WeightMemory.size_of(shape, torch.bfloat16) for shape in ((3, 5), (100,))]
    memory = WeightMemory(sum(sizes))
    first, second = memory.take((3, 5), torch.bfloat16), memory.take((100,), torch.bfloat16)
    assert first.data_ptr() % HUGE_PAGE_BYTES == 0
    assert second.data_ptr() - first.data_ptr() == sizes[0] == 64
    first.fill_(1)
    assert not second.any()
    with pytest.raises(AssertionError, match="more is taken"):
        memory.take((64,), torch.int8)
