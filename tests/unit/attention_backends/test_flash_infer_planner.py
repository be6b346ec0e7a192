"""`flash_infer` over FlashInfer's own Python; only its kernels are replaced.

The library's checks and buffer handling are the real ones: fixed batch, rows and indices of graph
wrappers, data types, what a plan copies where.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from attention_backends import _chip, flash_infer
from attention_backends._interface import AttentionBatch, AttentionShape, Bucket
from attention_backends.flash_infer import Backend
from tests.unit.attention_backends.fakes.fake_flashinfer import _workspace_bytes
from tests.unit.attention_backends.flashinfer_sources import real_flashinfer
from tests.unit.attention_backends.paging import Step, make_shape, make_step, paged_reference
from tests.unit.watching import Watch

CPU, META = torch.device("cpu"), torch.device("meta")
HALF = torch.float16
SHAPES = [
    make_shape((4, 2), 64, HALF),
    make_shape((4, 1), 64, HALF, window=50, softcap=3.0),
]
MIXES = {
    "decode": ([1, 1, 1], [1, 65, 300]),
    "mixed": ([1, 40, 1, 3], [130, 90, 1, 67]),
    "empty rows": ([1, 0, 6], [9, 0, 6]),
}


class Kernels:
    """In place of the compiled module: arguments by position, as prefill.py passes them."""

    def __init__(self) -> None:
        self.plans: list[tuple] = []

    def workspace_size(self, *args: object) -> tuple[int, int]:
        _, _, _, _, _, batch, q_heads, kv_heads, _, is_graph, head_dim, *_ = args
        assert is_graph
        assert len(args) == 18
        return _workspace_bytes(batch, q_heads, kv_heads, head_dim)

    def plan(self, *args: object) -> list[int]:
        assert len(args) == 20
        floats, ints, pinned, starts, pages, lens, rows, batch = args[:8]
        assert ints.numel() == pinned.numel()
        assert starts.device.type == pages.device.type == lens.device.type == "cpu"
        assert len(starts) == len(pages) == batch + 1
        assert rows == int(starts[-1])
        self.plans.append(args)
        is_graph, head_dim = args[11], args[12]
        if is_graph:
            need = _workspace_bytes(batch, args[8], args[9], head_dim)
            assert need[0] <= floats.nbytes
            assert need[1] <= ints.nbytes
        return [rows, batch, int(is_graph)]

    def paged_run(self, *args: object) -> None:
        assert len(args) in (46, 49)
        _, _, info, q, k, v, starts, start, indices, last, out, _, mask, layout, left = args[:15]
        softcap, scale = args[22:24]
        assert layout == 0
        assert info[0] == len(q)
        blocks = [indices[a:b].tolist() for a, b in pairwise(start.tolist())]
        full = [max(len(row) - 1, 0) * k.shape[1] for row in blocks]
        lens = [tokens + rest for tokens, rest in zip(full, last.tolist(), strict=True)]
        result = paged_reference(
            q,
            k,
            v,
            query_starts=starts.tolist(),
            key_lens=lens,
            blocks=blocks,
            scale=scale,
            left=None if left < 0 else left,
            softcap=softcap,
            causal=mask == 1,
        )
        out.copy_(result)


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> Iterator[None]:
    with real_flashinfer(pytestconfig):
        yield


@pytest.fixture(autouse=True)
def kernels(library: None, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    import flashinfer

    kernels = Kernels()
    module = SimpleNamespace(
        plan=kernels.plan, workspace_size=kernels.workspace_size, paged_run=kernels.paged_run
    )
    for file in (flashinfer.prefill, flashinfer.decode):
        monkeypatch.setattr(file, "get_batch_prefill_module", lambda *args: module)
    empty = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs),
    )
    monkeypatch.setattr(_chip, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(flash_infer, "is_installed", lambda name: True)
    monkeypatch.setattr(flash_infer, "FLOAT_WORKSPACE_BYTES", 1024)
    return kernels


def run(backend: Backend, layer: int, step: Step, plan: object) -> Tensor:
    out = torch.full_like(step.q, math.nan)
    backend.attend(layer, step.q, step.kv, out, plan)
    return out


def check(out: Tensor, step: Step) -> None:
    torch.testing.assert_close(out[: step.real].double(), step.expected(), atol=2e-3, rtol=2e-3)
    assert out.isfinite().all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("shape", SHAPES, ids=["grouped", "window and cap"])
def test_numbers(shape: AttentionShape, mix: str, padded: bool) -> None:
    step = make_step(
        shape, 16, *MIXES[mix], **({"num_tokens": 64, "num_reqs": 6} if padded else {})
    )
    backend = Backend([shape], 16, CPU)
    for _ in range(2):
        check(run(backend, 0, step, backend.plan(step.batch)), step)


def test_captured_decode(kernels: Kernels) -> None:
    backend = Backend(SHAPES, 16, CPU)
    buckets = [Bucket("decode", n, n) for n in (2, 4)]
    backend.reserve(buckets, 320)

    def make_steps(size: int, lens: list[int]) -> list[Step]:
        pad = {"num_tokens": size, "num_reqs": size, "max_blocks": 20, "num_blocks": 100}
        return [make_step(s, 16, [1] * len(lens), lens, **pad, seed=len(lens)) for s in SHAPES]

    plans = {
        b.num_reqs: backend.open_bucket(b, make_steps(b.num_reqs, [1])[0].batch) for b in buckets
    }
    frozen = {size: _addresses(plan) for size, plan in plans.items()}
    for n in (1, 4, 3, 2):
        size = 2 if n <= 2 else 4
        steps = make_steps(size, [(320, 1, 17, 160)[i] for i in range(n)])
        backend.refresh(plans[size], steps[0].batch)
        for layer, step in enumerate(steps):
            check(run(backend, layer, step, plans[size]), step)
        assert _addresses(plans[size]) == frozen[size]


def _addresses(plan: object) -> list[object]:
    names = ("_paged_kv_indptr_buf", "_paged_kv_indices_buf", "_paged_kv_last_page_len_buf")
    names += ("_qo_indptr_buf", "_float_workspace_buffer", "_int_workspace_buffer")
    wrappers = [planned._wrapper for planned in plan.wrappers]
    return [(getattr(w, name).data_ptr(), w._plan_info) for w in wrappers for name in names]


def test_the_library_refuses_more_than_was_reserved() -> None:
    backend = Backend(SHAPES[:1], 16, CPU)
    bucket = Bucket("decode", 2, 2)
    backend.reserve([bucket], 32)
    step = make_step(SHAPES[0], 16, [1, 1], [16, 32])
    plan = backend.open_bucket(bucket, step.batch)
    more = make_step(SHAPES[0], 16, [1, 1], [48, 32])
    with pytest.raises(ValueError, match="less than or equal to the allocated buffer"):
        backend.refresh(plan, more.batch)
    other = make_step(SHAPES[0], 16, [1, 1, 1], [1, 1, 1])
    with pytest.raises(ValueError, match="batch size should be fixed"):
        backend.refresh(plan, other.batch)


@pytest.mark.parametrize("mix", MIXES)
def test_the_library_waits_for_nothing_in_a_plan(mix: str) -> None:
    backend = Backend(SHAPES, 16, META)
    batch = on_meta(make_step(SHAPES[0], 16, *MIXES[mix]))
    with Watch("meta") as watch:
        backend.plan(batch)
    assert watch.blocking == []
    assert watch.uploads > 0


def test_the_library_waits_for_nothing_in_a_refresh() -> None:
    backend = Backend(SHAPES, 16, META)
    bucket = Bucket("decode", 4, 4)
    backend.reserve([bucket], 320)
    batch = on_meta(make_step(SHAPES[0], 16, [1] * 4, [1, 20, 300, 7], max_blocks=20))
    plan = backend.open_bucket(bucket, batch)
    with Watch("meta") as watch:
        backend.refresh(plan, batch)
    assert watch.blocking == []
    assert watch.uploads > 0


def on_meta(step: Step) -> AttentionBatch:
    """The step's batch with its device tensors where nobody can read them."""
    names = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")
    there = {name: getattr(step.batch, name).to(META) for name in names}
    return dataclasses.replace(step.batch, **there)
