"""What is done for each step before its launches queues work on the device, and waits for none.

The device is torch's "meta": whatever would read a value there fails, and copies are noted.
"""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from attention_backends import (
    AttentionBackend,
    AttentionBatch,
    Bucket,
    _chip,
    _flash_attention_2,
    _flash_attention_3,
    _flash_infer_wrappers,
    choose_backend,
    choose_pair,
    flash_infer,
    triton_paged,
)
from attention_backends._kernel_library import Opened
from tests.unit.attention_backends.fakes import (
    fake_flash_attention_2,
    fake_flash_attention_3,
    fake_flashinfer,
)
from tests.unit.attention_backends.paging import make_shape, make_step
from tests.unit.watching import WaitedError, Watch

META = torch.device("meta")
SHAPES = [make_shape((4, 2), 64, torch.float16), make_shape((4, 2), 64, torch.float16, window=37)]
MIXES = {
    "decode": ([1, 1, 1], [1, 65, 300], {}),
    "padded decode": ([1, 1, 1], [1, 65, 300], {"num_tokens": 8, "num_reqs": 8}),
    "mixed": ([1, 40, 1, 3], [130, 90, 1, 67], {}),
    "padded": ([1, 40, 1, 3], [130, 90, 1, 67], {"num_tokens": 128, "num_reqs": 8}),
    "empty rows": ([1, 0, 6], [9, 0, 6], {}),
    "tail beyond the table": ([20], [20], {"num_tokens": 600, "num_reqs": 3, "max_blocks": 2}),
}
FIELDS = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")
LIBRARIES = {
    "flash_attn": fake_flash_attention_2,
    "flash_attn_interface": fake_flash_attention_3,
    "flashinfer": fake_flashinfer,
}


@pytest.fixture(params=["flash_attention 2", "flash_attention 3", "flash_infer", "triton", "pair"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AttentionBackend:
    chip = (8, 9) if request.param == "flash_attention 2" else (9, 0)
    for module in (_chip, _flash_attention_3):
        monkeypatch.setattr(module, "compute_capability", lambda device: chip)
    for module in (_flash_attention_2, _flash_attention_3, flash_infer, triton_paged):
        monkeypatch.setattr(module, "is_installed", lambda name: True)
    monkeypatch.setattr(triton_paged, "open_library", lambda library: Opened(None, ""))
    for name, fake in LIBRARIES.items():
        monkeypatch.setitem(sys.modules, name, fake.make_module())
    stream = sys.modules["flashinfer"].stream
    monkeypatch.setattr(
        _flash_infer_wrappers, "make_event", lambda device: fake_flashinfer.FakeEvent(stream)
    )
    monkeypatch.setitem(sys.modules, "flash_attn_config", fake_flash_attention_3.make_config())
    block_size = 256 if request.param == "flash_attention 2" else 16
    if request.param == "pair":
        choice = choose_pair("flash_attention", "flash_infer", SHAPES, block_size, META)
    else:
        name = {"triton": "triton_paged"}.get(request.param, request.param.split()[0])
        choice = choose_backend(name, SHAPES, block_size, META)
    made = choice.backend(SHAPES, block_size, META)
    made.block_size = block_size
    return made


def batch_of(backend: AttentionBackend, mix: str) -> AttentionBatch:
    queries, keys, pad = MIXES[mix]
    batch = make_step(SHAPES[0], backend.block_size, queries, keys, **pad).batch
    there = {name: getattr(batch, name).to(META) for name in FIELDS}
    return dataclasses.replace(batch, **there)


@pytest.mark.parametrize("mix", MIXES)
def test_a_plan_waits_for_nothing(backend: AttentionBackend, mix: str) -> None:
    batch = batch_of(backend, mix)
    with Watch("meta") as watch:
        backend.plan(batch)
    assert watch.blocking == []


def test_a_refresh_waits_for_nothing(backend: AttentionBackend) -> None:
    bucket = Bucket("decode", 8, 8, 1024)
    backend.reserve([bucket], 512)
    plan = backend.open_bucket(bucket, batch_of(backend, "padded decode"))
    step = batch_of(backend, "padded decode")
    with Watch("meta") as watch:
        backend.refresh(plan, step)
    assert watch.blocking == []


@pytest.mark.parametrize("inference", [False, True])
def test_the_watch_sees_what_waits(inference: bool) -> None:
    host, there = torch.arange(3, dtype=torch.int32), torch.empty(3, device=META)
    with Watch("meta") as watch, torch.inference_mode(inference):
        host.to(META)
        there.copy_(host)
        host.to(META, non_blocking=True)
        there.copy_(host, non_blocking=True)
        torch.tensor([1, 2], device=META)
        there.new_tensor([1])
        torch.as_tensor(host.numpy())
        assert host.sum().item() == 3  # the host's own
        with pytest.raises(WaitedError):
            there.nonzero()
        with pytest.raises(WaitedError):
            there.sum().item()
    assert watch.blocking == [*["torch.int32 (3,)"] * 2, "torch.int64 (2,)", "torch.float32 (1,)"]
    assert watch.uploads == 6
