"""The sampler's way on a GPU, where the host must not wait: its tokens, and what it never does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.data.params import SamplingParams
from runtime.ops.transfer import HostCopy, upload
from runtime.sampling import draw, sampler
from runtime.sampling.blocks import BlockedScores
from tests.unit.sampling.helpers import Bench
from tests.unit.sampling.twin import sample_row
from tests.unit.watching import WaitedError, Watch

KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 5.0},
    {"top_k": 5},
    {"top_k": 4000},
    {"top_k": 6000, "top_p": 0.999},
    {"top_p": 0.5},
    {"top_p": 0.99},
    {"min_p": 0.1},
    {"top_p": 0.7, "min_p": 1e-5},
]
EDITS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.4, "top_p": 0.9},
    {"logit_bias": {3: 5.0}, "top_k": 20},
    {"allowed_token_ids": [1, 5, 9], "temperature": 0.0},
    {"min_tokens": 4, "top_p": 0.8},
]


def rows_of(kinds: list[dict[str, Any]], seeds: tuple[int, ...] = (1, 2)) -> list[SamplingParams]:
    return [SamplingParams(seed=seed, **kind) for kind in kinds for seed in seeds]


def logits_of(n: int, v: int, scale: float) -> Tensor:
    return torch.randn(n, v, generator=torch.Generator().manual_seed(7)) * scale


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(sampler, "reading_is_free", lambda device: False)


@pytest.mark.parametrize("vocab_size", [2, 64, 130, 9001])
def test_the_op_says_what_the_blocks_say(vocab_size, monkeypatch):
    logits = logits_of(5, vocab_size, 3.0)
    logits[1] = 0.5
    logits[2, vocab_size // 2] = torch.inf
    logits[3, -1] = torch.nan
    blocks = BlockedScores(logits)
    want = blocks.max.clone(), blocks.argmax()
    monkeypatch.setattr(BlockedScores, "_has_best", True)
    one = BlockedScores(logits)
    torch.testing.assert_close(one.max, want[0], rtol=0, atol=0, equal_nan=True)
    assert one.argmax().tolist() == want[1].tolist()


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("vocab_size", [2, 64, 1000, 9001])
@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_tokens_are_the_twins(vocab_size, scale):
    params = rows_of(KINDS)
    logits = logits_of(len(params), vocab_size, scale)
    want = [sample_row(row.numpy(), p, 3) for row, p in zip(logits, params, strict=True)]
    bench = Bench(params, vocab_size)
    with Watch():
        got = bench.sample(logits).token_ids.tolist()
    assert got == want


@pytest.mark.usefixtures("as_on_a_gpu")
def test_edited_rows_get_the_tokens_that_they_get_on_the_cpu(monkeypatch):
    params = rows_of([*KINDS, *EDITS])
    logits = logits_of(len(params), 5000, 1.0)
    with Watch():
        got = Bench(params, 5000).sample(logits)
    monkeypatch.undo()
    want = Bench(params, 5000).sample(logits)
    assert got.token_ids.tolist() == want.token_ids.tolist()
    assert not got.errors


@pytest.mark.usefixtures("as_on_a_gpu")
def test_rows_whose_heads_cannot_tell_are_sorted_after_one_more_read(monkeypatch):
    """Flat rows over many blocks: a nucleus of nearly all of them is not in the head."""
    sorted_rows = []
    whole = draw.draw_sorted
    monkeypatch.setattr(
        sampler, "draw_sorted", lambda b, i, p: sorted_rows.append(len(i)) or whole(b, i, p)
    )
    params = [SamplingParams(seed=1, top_k=8000), SamplingParams(seed=2, top_k=5)]
    logits = logits_of(2, 9001, 0.1)
    want = [sample_row(row.numpy(), p, 3) for row, p in zip(logits, params, strict=True)]
    assert Bench(params, 9001).sample(logits).token_ids.tolist() == want
    assert sorted_rows == [1]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_rows_that_are_not_finite_end_alone():
    params = rows_of([{}, {"top_p": 0.9}, {"temperature": 0.0}], (1,))
    logits = logits_of(3, 500, 1.0)
    logits[1, 3] = torch.nan
    out = Bench(params, 500).sample(logits)
    assert list(out.errors) == [1]
    assert out.token_ids[1] == -1
    assert (out.token_ids[[0, 2]] >= 0).all()


def on_meta(params: list[SamplingParams], vocab_size: int) -> tuple[Watch, list[Tensor]]:
    """Sample where there are no values at all: what was noted, and what the host read."""
    bench, reads = Bench(params, vocab_size), []
    on_device = sampler.Sampler(vocab_size, bench.token_ids, "meta")
    on_device._table, on_device._edits = bench.sampler._table, bench.sampler._edits

    def read(tokens: Tensor) -> HostCopy:
        reads.append(tokens)
        return HostCopy(torch.zeros(len(tokens), dtype=torch.int32))

    on_device._read = read
    logits = torch.empty(len(params), vocab_size, dtype=torch.bfloat16, device="meta")
    with Watch() as watch:
        on_device.sample(logits, bench.rows, bench.num_tokens)
    return watch, reads


@pytest.mark.parametrize("vocab_size", [50, 9001])
@pytest.mark.parametrize(
    ("kinds", "most_uploads"),
    [
        ([{"temperature": 0.0}], 0),
        ([{}], 3),
        ([{"top_p": 0.9, "top_k": 40}], 3),
        (KINDS, 6),
        (KINDS + EDITS, 23),
    ],
    ids=["greedy", "random", "truncated", "mixed", "edited"],
)
def test_one_read_and_no_blocking_copy(kinds, most_uploads, vocab_size):
    watch, reads = on_meta(rows_of(kinds), vocab_size)
    assert [tuple(t.shape) for t in reads] == [(2 * len(kinds),)]
    assert watch.blocking == []
    assert watch.uploads <= most_uploads


@pytest.mark.parametrize("vocab_size", [50, 9001])
def test_the_watch_sees_the_cpus_way_wait(vocab_size):
    bench = Bench(rows_of([{"top_p": 0.9}]), vocab_size)
    with Watch(), pytest.raises(WaitedError):
        bench.sample(logits_of(2, vocab_size, 1.0))


def test_upload_gives_every_array_back():
    arrays = [
        np.arange(3, dtype=np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array([True, False]),
        np.zeros(0, np.float64),
        np.arange(8, dtype=np.int32)[::2],
    ]
    there = upload(torch.device("cpu"), *arrays)
    for tensor, array in zip(there, arrays, strict=True):
        assert np.array_equal(tensor.numpy(), array)


def test_upload_elsewhere_is_one_copy(monkeypatch):
    arrays = [np.arange(3, dtype=np.float32), np.arange(6).reshape(2, 3), np.zeros(0), np.eye(2)]
    to, copies = Tensor.to, []

    def record(tensor: Tensor, device: Any, **kwargs: Any) -> Tensor:
        copies.append((device, kwargs))
        return to(tensor, "cpu").clone()

    monkeypatch.setattr(Tensor, "to", record)
    there = upload(torch.device("meta"), *arrays)
    assert copies == [(torch.device("meta"), {"non_blocking": True})]
    for tensor, array in zip(there, arrays, strict=True):
        assert tensor.shape == array.shape
        assert np.array_equal(tensor.numpy(), array)
