"""What the launch of a step does on a device: it queues work, and the host waits for none of it.

The device is torch's "meta": whatever would read a value there fails, and copies are noted.
"""

import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_backends import torch_paged
from runtime.config import RuntimeConfig
from runtime.models import read_spec
from runtime.models._loaded import build
from runtime.ops.transfer import HostCopy
from runtime.runner import ModelRunner, buffers
from tests.unit.runner.helpers import new_row, step
from tests.unit.watching import WaitedError, Watch

META = torch.device("meta")


class Backend(torch_paged.Backend):
    """Its plan waits for nothing (see the backends' own tests), and neither does it attend."""

    def plan(self, batch):
        return None

    def attend(self, layer, q, kv, out, plan):
        out.zero_()


class Event:
    def record(self):
        pass

    def synchronize(self):
        pass


def make_sides(sizes, device):
    return [buffers._Side(sizes, copied=Event()) for _ in range(2)]


@pytest.fixture
def runner(tiny_path, monkeypatch):
    monkeypatch.setattr(buffers, "_make_sides", make_sides)
    config = RuntimeConfig(
        model={"path": tiny_path, "format": "dummy"},
        scheduler={"max_num_seqs": 6, "max_num_batched_tokens": 64},
        graphs={"decode": "padded_eager", "mixed": "padded_eager"},
    )
    loaded = build(read_spec(config.model), META, lambda model: None)
    runner = ModelRunner(
        config, loaded, Backend, device=META, max_model_len=40, block_size=4, num_blocks=66
    )
    monkeypatch.setattr(
        runner.sampler, "_read", lambda tokens: HostCopy(torch.zeros(len(tokens)).int())
    )
    return runner


PARAMS = {0: {}, 1: {"temperature": 1.0, "seed": 3}, 2: {"repetition_penalty": 1.2}}


def first_step():
    rows = [new_row(r, [3, 4, 5 + r], block_ids=[2 + r]) for r in PARAMS]
    new = [replace(row, params=row.params.updated(**PARAMS[row.row])) for row in rows]
    return step([(r, 0, 3, True) for r in PARAMS], new=new)


def decode(**changes):
    return replace(step([(r, 3, 1, True) for r in PARAMS]), **changes)


def uploads_of(runner, so):
    with Watch("meta") as watch:
        runner.launch(so)
    assert watch.blocking == []
    return watch.uploads


def test_chunks_and_decodes(runner):
    assert uploads_of(runner, first_step()) > 0
    assert uploads_of(runner, decode()) > 0


def test_tokens_that_only_the_device_knows(runner):
    runner.launch(first_step())
    assert uploads_of(runner, decode(feeds=np.array([True] * 3))) > 0


def test_blocks_to_clear_take_one_copy(runner):
    runner.launch(first_step())
    with_none = uploads_of(runner, decode())
    assert uploads_of(runner, decode(blocks_to_clear=(7, 8))) == with_none + 1


def test_the_watch_sees_a_launch_that_waits(runner, monkeypatch):
    model = types.SimpleNamespace(
        forward=lambda ids, positions, attend: ids[ids > 0],
        compute_logits=runner._model.compute_logits,
    )
    monkeypatch.setattr(runner, "_model", model)
    with Watch("meta"), pytest.raises(WaitedError):
        runner.launch(first_step())
