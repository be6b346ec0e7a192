"""`cpu_native` against dense attention in float64 and against its twin, for every instruction set.

Float32 is held to 1e-5. In bf16 and float16 only the result is rounded, by half a step of its type
at the size of the values, 2^-8 and 2^-11 of the largest, and 1e-4 is granted to the softmax. AMX
tiles round the softmax's weights too: 2^-7.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import attention_backends.cpu_native as cpu_native
from attention_backends import (
    Bucket,
    LayerKV,
    NativeSource,
    able_isas,
    choose_backend,
    compiler_problem,
)
from attention_backends._native.attention_args import HEADER_WORDS, ITEM_FIELDS
from attention_backends.cpu_native import Backend
from attention_backends.torch_paged import Backend as Twin
from tests.unit.attention_backends.paging import Step, make_shape, make_step

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8 + 1e-4, torch.float16: 2**-11 + 1e-4}
TILE_TOLERANCE = 2**-7

if compiler_problem():
    pytest.skip(compiler_problem(), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=able_isas())
def isa(request):
    return request.param


def run(step: Step, backend, kv: LayerKV | None = None) -> torch.Tensor:
    out = torch.full_like(step.q, torch.nan)
    backend.attend(0, step.q, kv or step.kv, out, backend.plan(step.batch))
    return out


def make_backend(step: Step, isa: str | None = None) -> Backend:
    return Backend([step.shape], step.block_size, CPU, isa)


def granted(step: Step, isa: str) -> float:
    in_tiles = isa == "amx" and step.shape.dtype is step.shape.kv_dtype is torch.bfloat16
    return TILE_TOLERANCE if in_tiles else TOLERANCE[step.shape.dtype]


def check(
    step: Step,
    out: torch.Tensor,
    expected: torch.Tensor | None = None,
    tolerance: float | None = None,
) -> None:
    """Real rows within the tolerance (the dtype's where None), relative to the largest value;
    others zero."""
    expected = step.expected() if expected is None else expected
    error = (out[: step.real].double() - expected).abs().max() / expected.abs().max()
    assert error <= (tolerance or TOLERANCE[step.shape.dtype])
    assert not out[step.real :].any()


# heads (query, K/V), head_dim, block size, query lengths, context lengths, window, soft cap
SWEEP = [
    ((1, 1), 32, 4, [1, 7], [1, 7], None, 0.0),
    ((2, 1), 48, 8, [1, 1, 1], [5, 256, 257], None, 0.0),
    ((3, 1), 64, 16, [1, 40], [511, 300], None, 0.0),
    ((9, 3), 64, 16, [1, 1, 5, 1], [1, 300, 700, 2049], None, 0.0),
    ((4, 1), 128, 32, [130, 1], [513, 600], None, 0.0),
    ((7, 1), 96, 128, [3, 1], [129, 1000], None, 0.0),
    ((16, 2), 64, 16, [1, 2, 33], [64, 65, 512], None, 0.0),
    ((64, 64), 32, 16, [2, 1], [20, 33], None, 0.0),
    ((64, 8), 64, 64, [1, 3], [90, 120], None, 0.0),
    ((32, 1), 80, 5, [4, 1], [300, 17], None, 0.0),
    ((8, 8), 112, 16, [9], [280], None, 0.0),
    ((4, 2), 256, 16, [1, 12], [700, 270], None, 0.0),
    ((6, 2), 160, 16, [20, 1], [20, 259], None, 0.0),
    ((2, 2), 64, 16, [300], [300], None, 0.0),
    ((3, 1), 64, 16, [257, 255], [769, 600], None, 0.0),
    ((2, 1), 64, 32, [1], [8192], None, 0.0),
    ((8, 4), 64, 16, [1, 30, 1], [900, 400, 20], 1, 0.0),
    ((8, 4), 64, 16, [1, 30, 1], [900, 400, 20], 37, 0.0),
    ((4, 1), 80, 16, [1, 130], [1100, 700], 256, 0.0),
    ((4, 2), 64, 16, [1, 70], [600, 600], 100000, 0.0),
    ((8, 2), 64, 16, [3, 1], [1030, 270], None, 20.0),
    ((4, 4), 128, 16, [40, 1], [300, 300], 100, 5.0),
]


@cache
def swept(index: int, dtype: torch.dtype) -> tuple[Step, torch.Tensor]:
    heads, head_dim, block_size, query_lens, seq_lens, window, softcap = SWEEP[index]
    shape = make_shape(heads, head_dim, dtype, window, softcap)
    num_tokens, num_reqs = sum(query_lens) + 5, len(query_lens) + 3
    step = make_step(
        shape, block_size, query_lens, seq_lens, num_tokens=num_tokens, num_reqs=num_reqs
    )
    return step, step.expected()


@pytest.mark.parametrize("index", range(len(SWEEP)))
def test_equals_dense_attention_in_float32(index, isa):
    step, expected = swept(index, torch.float32)
    check(step, run(step, make_backend(step, isa)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("index", [1, 3, 4, 6, 9, 10, 11, 12, 14, 15, 17, 18, 20, 21])
def test_equals_dense_attention_in_half_precision(index, dtype, isa):
    step, expected = swept(index, dtype)
    check(step, run(step, make_backend(step, isa)), expected, granted(step, isa))


@pytest.mark.parametrize("index", [0, 3, 4, 6, 17, 21])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_equals_its_twin(index, dtype):
    step, _ = swept(index, dtype)
    twin = run(step, Twin([step.shape], step.block_size, CPU))
    backend = make_backend(step)
    rounding_of_twin = 0 if dtype is torch.float32 else TOLERANCE[dtype]
    tolerance = granted(step, backend.isa) + rounding_of_twin
    check(step, run(step, backend), twin[: step.real].double(), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", TOLERANCE)
def test_the_cache_may_hold_another_type(dtype, kv_dtype, isa):
    step = make_step(make_shape((4, 2), 64, dtype), 16, [1, 9, 40], [300, 9, 270])
    kv = LayerKV(step.kv.k.to(kv_dtype), step.kv.v.to(kv_dtype))
    step = replace(step, shape=replace(step.shape, kv_dtype=kv_dtype), kv=kv)
    check(step, run(step, make_backend(step, isa)), tolerance=granted(step, isa))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reads_its_own_layout_and_strided_queries(dtype, isa):
    shape = make_shape((6, 2), 64, dtype)
    step = make_step(shape, 16, [1, 9, 40], [300, 9, 270], num_tokens=60)
    backend = make_backend(step, isa)
    own = backend.allocate_kv(step.kv.k.shape[0])[0]
    assert not own.k.any()
    assert own.k.shape == step.kv.k.shape
    assert own.k.stride() == own.v.stride()
    own.k.copy_(step.kv.k)
    own.v.copy_(step.kv.v)
    fused = torch.zeros(60, 10, 64, dtype=dtype)
    fused[:, :6] = step.q
    strided = replace(step, q=fused[:, :6])
    expected = run(step, backend)
    check(step, expected, tolerance=granted(step, isa))
    assert torch.equal(run(strided, backend, own), expected)


def test_a_request_gets_the_same_bits_in_any_company(isa):
    """Alone or batched, whole or in chunks, with one thread or several, padded or not."""
    for dtype in (torch.float32, torch.bfloat16):
        shape = make_shape((6, 2), 64, dtype)
        whole = make_step(shape, 16, [300, 1], [900, 1500], num_tokens=310)
        expected = run(whole, make_backend(whole, isa))[:301]
        for queries, tokens in (
            ([1], slice(300, 301)),
            ([7], slice(293, 300)),
            ([299], slice(1, 300)),
        ):
            row = 1 if queries == [1] else 0
            part = _rows_of(whole, row, queries[0], tokens)
            if isa == "amx" and dtype is torch.bfloat16:  # few rows are summed in another order
                check(part, run(part, make_backend(part, isa)), tolerance=granted(part, isa))
            else:
                assert torch.equal(run(part, make_backend(part, isa)), expected[tokens])
        torch.set_num_threads(3)
        assert torch.equal(run(whole, make_backend(whole, isa))[:301], expected)
        torch.set_num_threads(1)


def _rows_of(step: Step, row: int, query_len: int, tokens: slice) -> Step:
    """The last `query_len` tokens before `tokens.stop` of one request, as a step of its own."""
    starts = np.array([0, query_len], np.int32)
    end = int(step.batch.query_start_loc_cpu[row + 1])
    seq_len = int(step.batch.seq_lens_cpu[row]) - (end - tokens.stop)
    lens = np.array([seq_len], np.int32)
    table = step.batch.block_table_cpu[row : row + 1]
    batch = replace(
        step.batch,
        num_tokens=query_len,
        num_reqs=1,
        query_start_loc=torch.from_numpy(starts),
        seq_lens=torch.from_numpy(lens),
        block_table=torch.from_numpy(table),
        query_start_loc_cpu=starts,
        seq_lens_cpu=lens,
        block_table_cpu=table,
        max_query_len=query_len,
        max_seq_len=seq_len,
    )
    return replace(step, batch=batch, q=step.q[tokens])


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("window", [None, 600])
def test_long_rows_are_split_over_their_keys(threads, window):
    torch.set_num_threads(threads)
    shape = make_shape((2, 1), 64, torch.float32, window)
    step = make_step(shape, 16, [1, 3], [3000, 1000], num_tokens=6)
    backend = make_backend(step)
    plan = backend.plan(step.batch)
    (work,) = plan.work.values()
    assert work.header.num_merges > 0
    assert work.header.num_items > 2
    check(step, run(step, backend))


def items_of(work: cpu_native.Work) -> list[tuple[int, int, int, int]]:
    """(request, K/V head, first token, tokens) of each, as threads take them."""
    fields = work.memory[HEADER_WORDS:][: work.header.num_items * ITEM_FIELDS]
    return [tuple(row[:4]) for row in fields.view(-1, ITEM_FIELDS).tolist()]


@pytest.mark.parametrize(("threads", "tokens"), [(1, 100), (2, 60), (3, 30), (8, 30)])
def test_tiles_are_even_and_as_large_as_they_can_be_while_all_threads_have_work(threads, tokens):
    torch.set_num_threads(threads)
    step = make_step(make_shape((4, 2), 64), 16, [300], [300])
    backend = make_backend(step)
    (work,) = backend.plan(step.batch).work.values()
    tiles = {(first, size) for _, _, first, size in items_of(work)}
    assert tiles == {(first, tokens) for first in range(0, 300, tokens)}
    check(step, run(step, backend))


def test_items_that_read_the_same_keys_follow_each_other_from_the_largest_request_down():
    step = make_step(make_shape((4, 2), 64), 16, [1, 600, 1], [40, 600, 900])
    plan = make_backend(step).plan(step.batch)
    (work,) = plan.work.values()
    taken = [item[:2] for item in items_of(work)]
    order = [(1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1)]
    assert taken == sorted(taken, key=order.index)
    assert len(set(taken)) == len(order)


def test_nan_in_a_request_stays_in_it():
    step = make_step(make_shape((4, 2), 64, torch.bfloat16), 16, [1, 5, 1], [40, 300, 280])
    clean = run(step, make_backend(step))
    step.q[1:6] = torch.nan
    out = run(step, make_backend(step))
    assert out[1:6].isnan().all()
    assert torch.equal(out[[0, 6]], clean[[0, 6]])
    step.kv.v[int(step.batch.block_table_cpu[2, 0]), 0] = torch.nan
    out = run(step, make_backend(step))
    assert out[6].isnan().all()
    assert torch.equal(out[0], clean[0])


def test_extreme_scores_stay_finite(isa):
    for factor in (1e4, 1e-30):
        step = make_step(make_shape((4, 2), 64), 16, [1, 40], [700, 300])
        step.q.mul_(factor)
        check(step, run(step, make_backend(step, isa)))


def test_an_empty_step_writes_zeros():
    step = make_step(make_shape(), 16, [1], [1], num_tokens=4)
    batch = replace(step.batch, num_tokens=0, num_reqs=0)
    backend = make_backend(step)
    out = torch.full_like(step.q, torch.nan)
    backend.attend(0, step.q, step.kv, out, backend.plan(batch))
    assert not out.any()


def test_a_bucket_is_filled_anew_in_place():
    """Same addresses, other requests: what a recorded step needs."""
    torch.set_num_threads(2)
    shape = make_shape((4, 2), 64)
    sizes = {"num_tokens": 40, "num_reqs": 6, "max_blocks": 80}
    first = make_step(shape, 16, [30, 1, 1], [100, 1200, 3], **sizes)
    second = make_step(shape, 16, [1, 38], [900, 38], seed=5, **sizes)
    backend = make_backend(first)
    assert backend.reserve([Bucket("ragged", 40, 6)], 1280) > 0
    static = replace(first.batch, block_table=first.batch.block_table.clone())
    plan = backend.open_bucket(Bucket("ragged", 40, 6), static)
    (work,) = plan.work.values()
    held = (plan.block_table.data_ptr(), plan.partials.data_ptr(), work.memory.data_ptr())
    for step in (first, second, first):
        backend.refresh(plan, step.batch)
        out = torch.full_like(step.q, torch.nan)
        backend.attend(0, step.q, step.kv, out, plan)
        check(step, out)
        assert torch.equal(out, run(step, backend))
    assert held == (plan.block_table.data_ptr(), plan.partials.data_ptr(), work.memory.data_ptr())


def test_a_step_larger_than_its_bucket_is_refused():
    shape = make_shape((128, 1), 64)
    backend = Backend([shape], 16, CPU)
    small = make_step(shape, 16, [1], [20], max_blocks=7)
    plan = backend.open_bucket(Bucket("ragged", 1, 1), small.batch)
    large = make_step(shape, 16, [100], [100])
    wide = make_step(shape, 16, [1], [200])
    with pytest.raises(ValueError, match="padded to its bucket"):
        backend.refresh(plan, wide.batch)
    with pytest.raises(ValueError, match="100 tokens in 1 requests is larger than its bucket"):
        backend.refresh(plan, large.batch)


def test_layers_of_different_shapes_have_plans_of_their_own(isa):
    shapes = [make_shape((4, 2), 64), make_shape((4, 2), 64, window=20), make_shape((3, 1), 128)]
    steps = [make_step(shape, 16, [1, 20], [300, 290], num_tokens=24) for shape in shapes]
    backend = Backend(shapes, 16, CPU, isa)
    plan = backend.plan(steps[0].batch)
    assert len(plan.work) == 3
    for layer, step in enumerate(steps):
        out = torch.full_like(step.q, torch.nan)
        backend.attend(layer, step.q, step.kv, out, plan)
        check(step, out)


@pytest.mark.skipif("avx512_bf16" not in able_isas(), reason="bf16 pairs need avx512_bf16")
def test_tiles_agree_with_dense_attention_where_their_registers_are_emulated(monkeypatch):
    source = NativeSource(
        "attention_emulated", cpu_native.SOURCE.files, ("-DSTEPGRAPH_EMULATED_TILES",)
    )
    monkeypatch.setattr(cpu_native, "SOURCE", source)
    for index in (0, 1, 3, 4, 6, 9, 10, 11, 12, 17, 20, 21):
        step, expected = swept(index, torch.bfloat16)
        check(step, run(step, make_backend(step, "avx512_bf16")), expected, TILE_TOLERANCE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float64}, "dtype torch.float64"),
        ({"kv_dtype": torch.int8}, "kv_dtype torch.int8"),
        ({"num_q_heads": 5}, "5 query heads cannot share 2"),
        ({"num_q_heads": 600}, "300 query heads of one K/V head"),
        ({"head_dim": 40}, "head_dim 40 is not a multiple of 16"),
        ({"head_dim": 1024}, "head_dim 1024"),
        ({"scale": -1.0}, "scale"),
    ],
)
def test_what_it_cannot_serve_it_refuses_with_a_reason(changes, reason):
    support = Backend.examine(replace(make_shape((4, 2), 64), **changes), 16, CPU)
    assert not support.ok
    assert reason in support.reason


def test_other_devices_and_machines_without_a_compiler_are_refused(monkeypatch):
    shape = make_shape()
    assert "runs on the CPU" in Backend.examine(shape, 16, torch.device("meta")).reason
    assert "block size" in Backend.examine(shape, 0, CPU).reason
    monkeypatch.setenv("CXX", "no-such-compiler")
    source = NativeSource("attention_never_built", cpu_native.SOURCE.files)
    monkeypatch.setattr(cpu_native, "SOURCE", source)
    support = Backend.examine(shape, 16, CPU)
    assert not support.ok
    assert "no C++ compiler" in support.reason


def test_auto_prefers_it_on_the_cpu_and_falls_back_with_the_reason(monkeypatch):
    shapes = [make_shape()]
    assert choose_backend("auto", shapes, 16, CPU).backend is Backend
    monkeypatch.setenv("CXX", "no-such-compiler")
    source = NativeSource("attention_never_built", cpu_native.SOURCE.files)
    monkeypatch.setattr(cpu_native, "SOURCE", source)
    choice = choose_backend("auto", shapes, 16, CPU)
    assert choice.backend is Twin
    assert "no C++ compiler" in choice.passed_over["cpu_native"]
