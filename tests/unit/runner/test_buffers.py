"""Staging: a host block is written again only after the device has read it."""

import numpy as np
import pytest
import torch

from graphs import GraphKey, Kind
from runtime.runner import buffers as buffers_module
from runtime.runner.buffers import InputBuffers
from runtime.runner.input_batch import InputBatch
from runtime.runner.states import RequestStates
from tests.unit.runner.helpers import CPU, RandomSchedule

EAGER = GraphKey(Kind.EAGER, 0, 0)
FIELDS = ("input_ids", "positions", "slot_mapping", "seq_lens", "query_start_loc", "block_table")


class SlowDevice:
    """A stream that runs what is queued only when someone waits for it."""

    def __init__(self):
        self.queue = []
        self.num_waits = 0

    def run(self, count):
        for _ in range(count):
            self.queue.pop(0)()

    def make_event(self):
        device = self

        class Event:
            left = None

            def record(self):
                self.left = marker = object()
                device.queue.append(lambda: self._pass(marker))

            def _pass(self, marker):
                if self.left is marker:
                    self.left = None

            def synchronize(self):
                device.num_waits += self.left is not None
                while self.left is not None:
                    device.run(1)

        return Event()


@pytest.fixture
def exact():
    """Buffers that are written in place."""
    return InputBuffers(256, 7, 64, CPU)


@pytest.fixture
def slow(exact, monkeypatch):
    device = SlowDevice()

    class Side(buffers_module._Side):
        @staticmethod
        def copy(to, source):
            device.queue.append(lambda: to.copy_(source))

    def make_sides(sizes, _):
        return [Side(sizes, copied=device.make_event()) for _ in range(2)]

    monkeypatch.setattr(buffers_module, "_make_sides", make_sides)
    return device


def values(batch):
    tensors = {name: getattr(batch, name, None) for name in FIELDS}
    return {
        name: (getattr(batch.attention, name) if tensor is None else tensor).clone()
        for name, tensor in tensors.items()
    }


def run_ahead(device, staged, exact, num_steps=60):
    """Build steps, the device some steps behind; what it saw of each, and what it should have."""
    schedule, states = RandomSchedule(5), RequestStates(6, 40, 4)
    seen, wanted = [], []
    for _ in range(num_steps):
        so = schedule.next_step()
        states.apply(so)
        batch = InputBatch.build(so, states, staged, EAGER)
        device.queue.append(lambda batch=batch: seen.append(values(batch)))
        wanted.append(values(InputBatch.build(so, states, exact, EAGER)))
        sampled = schedule.rng.integers(1, 50, int(so.samples.sum())).astype(np.int32)
        states.write_tokens(batch.sample_rows, batch.sample_positions, sampled)
        schedule.sampled(so, sampled)
    device.run(len(device.queue))
    return seen, wanted


def equal_steps(seen, wanted):
    return [
        all(torch.equal(a[name], b[name]) for name in FIELDS)
        for a, b in zip(seen, wanted, strict=True)
    ]


def test_the_device_sees_every_step_whole(slow, exact):
    staged = InputBuffers(256, 7, 64, CPU)
    seen, wanted = run_ahead(slow, staged, exact)
    assert all(equal_steps(seen, wanted))
    assert slow.num_waits == 58, "for the step before the last one, from the third on"


def test_without_waiting_it_does_not(slow, exact, monkeypatch):
    monkeypatch.setattr(buffers_module._Side, "wait", lambda side: None)
    staged = InputBuffers(256, 7, 64, CPU)
    assert not all(equal_steps(*run_ahead(slow, staged, exact)))


def test_device_addresses_never_change(slow):
    buffers = InputBuffers(256, 7, 64, CPU)
    before = buffers.device.input_ids.data_ptr()
    hosts = set()
    for _ in range(4):
        buffers.turn()
        hosts.add(buffers.host.input_ids.ctypes.data)
        assert buffers.device.input_ids.data_ptr() == before
    assert len(hosts) == 2
    assert before not in hosts


def test_on_a_cpu_the_device_reads_the_host_block_in_place():
    buffers = InputBuffers(256, 7, 64, CPU)
    for value in (7, 8):
        buffers.turn()
        buffers.host.input_ids[3] = value
        assert buffers.device.input_ids[3] == value


def test_fed_tokens_go_to_their_places_and_those_that_are_none_become_0():
    buffers = InputBuffers(16, 7, 4, CPU)
    buffers.turn()
    buffers.host.input_ids[:5] = 9
    buffers.host.feed_from[:3] = [2, 0, 1]
    buffers.host.feed_to[:3] = [0, 4, 2]
    buffers.feed(torch.tensor([-3, 30, 20], dtype=torch.int32), 3)
    assert buffers.host.input_ids[:5].tolist() == [20, 9, 30, 9, 0]
