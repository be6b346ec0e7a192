"""tools/gpu_check.py's share of idle time, on a clock and a device that do as they are told."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from runtime.data.params import SamplingParams
from runtime.data.request import Request
from runtime.data.step import RunnerOutput, StepShape
from tools._gpu_check import idle
from tools._gpu_check.idle import make_engine, run_overlapped
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import tiny
from tools._gpu_check.sections import SECTIONS
from tools._gpu_check.subject import settings

HOST_S, DEVICE_S = 0.002, 0.010


class Machine:
    """A runner whose host works HOST_S on each launch, and whose device DEVICE_S on each step."""

    def __init__(self) -> None:
        self.now = self.free_at = 0.0
        self.spans: list[tuple[float, float]] = []
        self.calls: list[str] = []

    def launch(self, so):
        self.now += HOST_S
        start = max(self.now, self.free_at)
        self.free_at = start + DEVICE_S
        self.spans.append((start, self.free_at))
        self.calls.append("launch")
        return so, self.free_at

    def collect(self, launched):
        so, end = launched
        self.now = max(self.now, end)
        self.calls.append("collect")
        shape = StepShape(so.num_tokens, so.num_tokens, so.num_reqs, so.num_reqs, "decode")
        return RunnerOutput(np.zeros(int(so.samples.sum()), np.int32), shape)

    def __len__(self) -> int:
        return len(self.spans)

    def busy_ms(self, begin=0, end=None):
        return [(last - first) * 1e3 for first, last in self.spans[begin:end]]


def measure(monkeypatch, overlap: bool) -> tuple[idle.Overlapped, Machine]:
    machine = Machine()
    monkeypatch.setattr(idle, "time", SimpleNamespace(perf_counter=lambda: machine.now))
    engine = make_engine(
        machine,
        settings("eager", "eager", max_num_seqs=4, max_tokens=32, max_model_len=64),
        vocab_size=100,
        block_size=16,
        num_blocks=20,
        overlap=overlap,
    )
    params = SamplingParams(temperature=0.0, max_tokens=64)
    requests = [Request(f"r{i}", [5] * 20, params) for i in range(4)]
    found = run_overlapped(engine, machine, requests, 10)
    assert not engine.has_unfinished()
    assert machine.calls.count("launch") == machine.calls.count("collect")
    return found, machine


def test_host_time_behind_a_running_step_is_not_idle(monkeypatch):
    found, machine = measure(monkeypatch, overlap=True)
    assert found.step == pytest.approx(10)
    assert found.idle == pytest.approx(0, abs=1e-6)
    assert (found.steps, found.ahead, found.kinds) == (10, 10, Counter(decode=10))
    assert "launch launch collect launch collect" in " ".join(machine.calls)


def test_host_time_between_steps_is_idle(monkeypatch):
    found, _ = measure(monkeypatch, overlap=False)
    assert found.step == pytest.approx(12)
    assert found.idle == pytest.approx(1 / 6)
    assert found.ahead == 0


def test_a_host_that_is_slower_than_the_device_is_idle_time(monkeypatch):
    monkeypatch.setattr("tests.unit.tools.test_gpu_check_idle.HOST_S", 0.016)
    found, _ = measure(monkeypatch, overlap=True)
    assert found.step == pytest.approx(16)
    assert found.idle == pytest.approx(3 / 8)


def speed_lines() -> list:
    report = Report(None, {})
    SECTIONS["speed"](tiny(torch.device("cpu")), report, Deadline(float("inf")))
    return [line for line in report.lines if line.section == "host"]


def test_the_line_is_of_steps_that_were_launched_ahead():
    [line] = speed_lines()
    assert line.verdict == "ok"
    assert line.values["ahead"] == line.values["steps"] == line.values["decode"]
    assert 0 < line.values["device_ms"] < line.values["step_ms"]


def test_steps_one_after_another_are_no_verdict(monkeypatch):
    make = idle.make_engine
    monkeypatch.setattr(idle, "make_engine", lambda *a, **k: make(*a, **{**k, "overlap": False}))
    [line] = speed_lines()
    assert (line.verdict, line.reason) == ("FAIL", "steps were not launched ahead, or ran eagerly")


def test_an_idle_device_fails_where_speed_has_a_verdict(monkeypatch):
    monkeypatch.setattr("tools._gpu_check.scale.Scale.has_aims", True)
    monkeypatch.setattr(idle.StepMarks, "busy_ms", lambda self, *span: [0.01] * 6)
    [line] = speed_lines()
    assert (line.verdict, line.reason) == (
        "FAIL",
        "the device is idle for more than 5% of the time",
    )
