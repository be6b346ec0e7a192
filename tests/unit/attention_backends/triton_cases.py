"""What `triton_paged` computes, in Triton's interpreter on the CPU.

The interpreter is chosen when triton is imported, so `test_triton_paged.py` runs this file in a
process of its own; the name keeps it out of an ordinary collection.
"""

from __future__ import annotations

import math
import os

import pytest
import torch

from attention_backends._interface import AttentionShape, Bucket
from attention_backends.triton_paged import Backend
from tests.unit.attention_backends.paging import Step, make_shape, make_step

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_triton_paged.py"
torch.set_num_threads(1)
CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3}

MIXES = {
    "decode": ([1, 1, 1], [1, 65, 130]),
    "prefill": ([70, 5], [70, 5]),
    "chunks": ([33, 2], [97, 140]),
    "mixed": ([1, 40, 1, 3], [130, 90, 1, 67]),
}
SHAPES = {
    "grouped": make_shape((4, 2), 16),
    "group of 3": make_shape((6, 2), 16),
    "one K/V head": make_shape((8, 1), 16),
    "no group": make_shape((2, 2), 16),
    "head_dim 24": make_shape((2, 1), 24),
    "head_dim 8": make_shape((2, 1), 8),
    "window": make_shape((4, 2), 16, window=37),
    "window of 1": make_shape((4, 2), 16, window=1),
    "window of 64": make_shape((4, 2), 16, window=64),
    "soft cap": make_shape((4, 2), 16, softcap=2.0),
    "window and cap": make_shape((4, 2), 16, window=50, softcap=3.0),
    "half": make_shape((4, 2), 16, torch.float16),
}


def make_backend(shape: AttentionShape, block_size: int = 16, multiprocessors: int = 1) -> Backend:
    backend = Backend([shape], block_size, CPU)
    backend._num_multiprocessors = multiprocessors
    return backend


def run(backend: Backend, step: Step, plan: object = None) -> torch.Tensor:
    out = torch.full_like(step.q, math.nan)
    backend.attend(0, step.q, step.kv, out, plan or backend.plan(step.batch))
    return out


def check(out: torch.Tensor, step: Step) -> None:
    tolerance = TOLERANCE[step.shape.dtype]
    real = out[: step.real].double()
    torch.testing.assert_close(real, step.expected(), atol=tolerance, rtol=tolerance)
    assert out.isfinite().all()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape(shape: AttentionShape) -> None:
    step = make_step(shape, 16, *MIXES["mixed"])
    check(run(make_backend(shape), step), step)


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix(mix: str) -> None:
    step = make_step(SHAPES["window and cap"], 16, *MIXES[mix])
    check(run(make_backend(step.shape), step), step)


@pytest.mark.parametrize("block_size", [1, 32, 256])
def test_any_block_size(block_size: int) -> None:
    step = make_step(SHAPES["window"], block_size, *MIXES["mixed"])
    check(run(make_backend(step.shape, block_size), step), step)


@pytest.mark.parametrize("name", ["window and cap", "half"])
@pytest.mark.parametrize("lens", [[1], [129, 700], [128, 1, 400]])
def test_split_keys(name: str, lens: list[int]) -> None:
    step = make_step(SHAPES[name], 16, [1] * len(lens), lens)
    backend = make_backend(step.shape, multiprocessors=8)
    plan = backend.plan(step.batch)
    assert plan.launches[0].num_splits >= 4
    plan.launches[0].partial.fill_(math.nan)
    plan.launches[0].lse.fill_(math.nan)
    check(run(backend, step, plan), step)


def test_garbage_beside_the_real_keys_is_never_read() -> None:
    steps = [make_step(SHAPES["grouped"], 16, *MIXES["mixed"], garbage=g) for g in (0.0, math.nan)]
    clean, dirty = (run(make_backend(step.shape), step) for step in steps)
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize(
    ("tokens", "reqs"), [(45, 9), (46, 6), (64, 5), (50, 131)], ids=lambda n: str(n)
)
def test_padding_changes_no_bit(tokens: int, reqs: int) -> None:
    exact, padded = (
        make_step(SHAPES["grouped"], 16, *MIXES["mixed"], max_blocks=12, **sizes)
        for sizes in ({}, {"num_tokens": tokens, "num_reqs": reqs})
    )
    padded.q[: exact.real] = exact.q
    plain = run(make_backend(exact.shape), exact)
    out = run(make_backend(exact.shape), padded)
    check(out, padded)
    assert torch.equal(out[: exact.real], plain)


def test_tail_of_padding_longer_than_the_block_table() -> None:
    step = make_step(SHAPES["grouped"], 16, [20], [20], num_tokens=128, num_reqs=3, max_blocks=2)
    check(run(make_backend(step.shape), step), step)


def test_strided_inputs_and_outputs() -> None:
    step = make_step(SHAPES["grouped"], 16, *MIXES["mixed"])
    packed = torch.zeros(step.q.shape[0], 3 * 4, 16)
    packed[:, :4] = step.q
    step.q = packed[:, :4]
    out = torch.full((step.q.shape[0], 8, 16), math.nan)[:, 2:6]
    backend = make_backend(step.shape)
    backend.attend(0, step.q, step.kv, out, backend.plan(step.batch))
    check(out, step)


def test_layers_of_two_shapes_share_one_plan() -> None:
    shapes = [SHAPES["grouped"], SHAPES["window"]]
    backend = Backend(shapes, 16, CPU)
    steps = [make_step(shape, 16, *MIXES["mixed"]) for shape in shapes]
    plan = backend.plan(steps[0].batch)
    for layer, step in enumerate(steps):
        out = torch.full_like(step.q, math.nan)
        backend.attend(layer, step.q, step.kv, out, plan)
        check(out, step)


def frozen(plan: object) -> tuple:
    """Every address and int that a captured graph would have baked in."""
    arrays = plan.arrays
    tensors = [arrays.query_start_loc, arrays.seq_lens, arrays.block_table]
    ints = [plan.num_reqs]
    for launch in plan.launches:
        tensors += [launch.partial, launch.lse]
        ints += [launch.num_tiles, launch.num_splits]
    return (*ints, *((t.data_ptr(), t.shape, t.stride()) for t in tensors))


@pytest.mark.parametrize("multiprocessors", [1, 4])
def test_decode_bucket_serves_every_smaller_step(multiprocessors: int) -> None:
    shape = SHAPES["one K/V head"]
    backend = make_backend(shape, multiprocessors=multiprocessors)
    bucket, pad = Bucket("decode", 4, 4), {"num_tokens": 4, "num_reqs": 4, "max_blocks": 32}
    backend.reserve([bucket, Bucket("decode", 2, 2)], 512)
    plan = backend.open_bucket(bucket, make_step(shape, 16, [1], [1], **pad).batch)
    assert plan.launches[0].num_splits == multiprocessors
    before = frozen(plan)
    for n in range(1, 5):
        lens = [(500, 1, 130, 300)[(n + i) % 4] for i in range(n)]
        exact = make_step(shape, 16, [1] * n, lens, max_blocks=32, seed=n)
        step = make_step(shape, 16, [1] * n, lens, **pad, seed=n)
        backend.refresh(plan, step.batch)
        assert frozen(plan) == before
        check(run(backend, step, plan), step)
        if n > 2:  # the counts whose bucket this is: as without padding, to the bit
            step.q[:n] = exact.q
            assert torch.equal(run(backend, step, plan)[:n], run(backend, exact))


def test_ragged_bucket_serves_any_mix() -> None:
    shape = SHAPES["grouped"]
    backend = make_backend(shape, multiprocessors=16)
    bucket = Bucket("ragged", 112, 6)
    backend.reserve([bucket], 256)
    pad = {"num_tokens": 112, "num_reqs": 6, "max_blocks": 16}
    plan = backend.open_bucket(bucket, make_step(shape, 16, [1], [1], **pad).batch)
    before = frozen(plan)
    for queries, keys in [
        MIXES["decode"],
        ([112], [200]),
        ([108, 1, 1, 1, 1], [108, 2, 3, 4, 5]),
        ([107, 1, 1, 1, 1, 1], [107, 2, 3, 4, 5, 6]),
    ]:
        step = make_step(shape, 16, queries, keys, **pad)
        backend.refresh(plan, step.batch)
        assert frozen(plan) == before
        check(run(backend, step, plan), step)


def test_eager_step_leaves_a_captured_plan_alone() -> None:
    shape = SHAPES["grouped"]
    backend = make_backend(shape, multiprocessors=8)
    bucket = Bucket("decode", 3, 3)
    assert backend.reserve([bucket], 256) == 4 * 3 * 4 * 4 * (16 + 1)
    step = make_step(shape, 16, [1, 1, 1], [40, 200, 7])
    plan = backend.open_bucket(bucket, step.batch)
    before = frozen(plan)
    larger = make_step(shape, 16, [1, 1], [300, 300])
    check(run(backend, larger), larger)
    assert backend._eager.numel() > backend._reserved.numel()
    assert frozen(plan) == before
    check(run(backend, step, plan), step)


def test_bucket_that_was_not_reserved() -> None:
    backend = make_backend(SHAPES["grouped"], multiprocessors=64)
    step = make_step(SHAPES["grouped"], 16, [1], [5])
    with pytest.raises(ValueError, match="not reserved"):
        backend.open_bucket(Bucket("decode", 1, 1), step.batch)


def test_step_that_is_not_padded_to_its_bucket() -> None:
    backend = make_backend(SHAPES["grouped"])
    step = make_step(SHAPES["grouped"], 16, [1, 1], [5, 6])
    backend.reserve([Bucket("decode", 2, 2)], 64)
    plan = backend.open_bucket(Bucket("decode", 2, 2), step.batch)
    short = make_step(SHAPES["grouped"], 16, [1], [5])
    with pytest.raises(ValueError, match="padded to its bucket"):
        backend.refresh(plan, short.batch)
