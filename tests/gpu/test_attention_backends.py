"""Every attention backend that is able here, on the device: numbers, and captured against fresh."""

from __future__ import annotations

import dataclasses
import importlib
import math

import pytest
import torch
from torch import Tensor

from attention_backends import AttentionShape, Bucket, GraphSupport, LayerKV
from tests.unit.attention_backends.paging import Step, make_shape, make_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BACKENDS = ("flash_attention", "flash_infer", "triton_paged")
BF16 = torch.bfloat16
SHAPES = {
    "grouped": make_shape((32, 8), 128, BF16),
    "window": make_shape((8, 2), 64, BF16, window=100),
    "soft cap": make_shape((8, 4), 256, BF16, softcap=20.0),
    "small": make_shape((9, 3), 64, BF16),
    "float32": make_shape((4, 2), 80, torch.float32),
}
MIXES = {
    "decode": ([1] * 5, [1, 65, 300, 1025, 2000]),
    "prefill": ([300, 5], [300, 5]),
    "mixed": ([1, 140, 1, 3], [1300, 290, 1, 67]),
    "empty rows": ([1, 0, 6], [9, 0, 6]),
}
FIELDS = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")


def on_device(step: Step) -> Step:
    """The step with its device tensors on the GPU; host arrays stay."""
    moved = {name: getattr(step.batch, name).cuda() for name in FIELDS}
    return dataclasses.replace(
        step,
        batch=dataclasses.replace(step.batch, **moved),
        kv=LayerKV(step.kv.k.cuda(), step.kv.v.cuda()),
        q=step.q.cuda(),
    )


def build(name: str, shape: AttentionShape) -> tuple[object, int, GraphSupport]:
    """The backend, the block size that it prefers, and what it may be captured in."""
    backend = importlib.import_module(f"attention_backends.{name}").Backend
    device = torch.device("cuda", 0)
    size = backend.examine(shape, 16, device).preferred_block_size
    support = backend.examine(shape, size, device)
    if not support.ok:
        pytest.skip(f"{name}: {support.reason}")
    return backend([shape], size, device), size, support.graph


def run(backend: object, step: Step, plan: object) -> Tensor:
    out = torch.full_like(step.q, math.nan)
    backend.attend(0, step.q, step.kv, out, plan)
    return out


def check(out: Tensor, step: Step, cpu_step: Step) -> None:
    """Against float64; the bounds are those of the inputs' own rounding."""
    tolerance = 1e-4 if step.q.dtype == torch.float32 else 2e-2
    real = out[: step.real].double().cpu()
    torch.testing.assert_close(real, cpu_step.expected(), atol=tolerance, rtol=tolerance)
    assert out.isfinite().all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_numbers(name: str, shape: AttentionShape, mix: str, padded: bool) -> None:
    backend, block_size, _ = build(name, shape)
    pad = {"num_tokens": 512, "num_reqs": 9} if padded else {}
    garbage = 1.0 if name == "flash_attention" else math.nan
    cpu_step = make_step(shape, block_size, *MIXES[mix], garbage=garbage, **pad)
    step = on_device(cpu_step)
    check(run(backend, step, backend.plan(step.batch)), step, cpu_step)


def capture(backend: object, step: Step, plan: object) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one attention over the step's buffers, and the output that it writes."""
    out = torch.full_like(step.q, math.nan)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            backend.attend(0, step.q, step.kv, out, plan)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        backend.attend(0, step.q, step.kv, out, plan)
    return graph, out


@pytest.mark.parametrize("kind", ["decode", "ragged"])
@pytest.mark.parametrize("shape_name", ["grouped", "window"])
@pytest.mark.parametrize("name", BACKENDS)
def test_captured(name: str, shape_name: str, kind: str) -> None:
    shape = SHAPES[shape_name]
    backend, block_size, support = build(name, shape)
    if kind == "ragged" and support < GraphSupport.RAGGED:
        pytest.skip(f"{name} captures one-token steps only")
    tokens, rows = (8, 8) if kind == "decode" else (512, 6)
    bucket = Bucket(kind, tokens, rows, 2048 if support is GraphSupport.ONE_TOKEN else 0)
    backend.reserve([bucket], 2048)
    pad = {
        "num_tokens": tokens,
        "num_reqs": rows,
        "max_blocks": 2048 // block_size,
        "num_blocks": 8 * 2048 // block_size + 2,
        "garbage": 1.0,
    }
    static = on_device(make_step(shape, block_size, [1], [1], **pad))
    plan = backend.open_bucket(bucket, static.batch)
    graph, out = capture(backend, static, plan)
    mixes = [([1] * n, [2048, 1, 77, 300, 1025, 16, 9, 2][:n]) for n in (1, 3, 8)]
    if kind == "ragged":
        mixes = [([512], [700]), *(MIXES[mix] for mix in ("prefill", "mixed", "empty rows"))]
    for seed, (queries, keys) in enumerate(mixes):
        cpu_step = make_step(shape, block_size, queries, keys, **pad, seed=seed)
        step = on_device(cpu_step)
        static.q.copy_(step.q)
        static.kv.k.copy_(step.kv.k)
        static.kv.v.copy_(step.kv.v)
        backend.refresh(plan, step.batch)
        out.fill_(math.nan)
        graph.replay()
        check(out, step, cpu_step)
        assert torch.equal(out, run(backend, static, plan)), "captured and fresh differ"
