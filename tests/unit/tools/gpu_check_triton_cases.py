"""The sections of tools/gpu_check.py that compare, with `triton_paged` in Triton's interpreter.

The interpreter is chosen when triton is imported, so this file runs in a process of its own; the
name keeps it out of an ordinary collection.
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from attention_backends import triton_paged
from tests.unit.attention_backends.paging import make_shape
from tools._gpu_check import attention_numerics
from tools._gpu_check.attention_numerics import check_backends
from tools._gpu_check.exactness import check_modes
from tools._gpu_check.report import Deadline, Line, Report
from tools._gpu_check.scale import TINY, tiny

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_gpu_check_exact.py"
torch.set_num_threads(1)
SCALE = replace(
    tiny(torch.device("cpu")),
    backends=("triton_paged",),
    exact_config={**TINY, "num_hidden_layers": 1},
    exact_lengths=((9, 3), (1, 4), (21, 2)),
    exact_context=150,
    exact_rows=4,
    exact_budget=8,
    exact_sizes=(1, 2, 4, 8),
    attention_keys=140,
    attention_rows=(1, 4),
    mixed_modes=("emulated", "emulated_ragged"),
)


def lines_of(section, monkeypatch) -> list[Line]:
    monkeypatch.setattr(triton_paged, "num_multiprocessors", lambda device: 4)
    report = Report(None, {})
    section(SCALE, report, Deadline(float("inf")))
    assert {line.verdict for line in report.lines} == {"ok"}, report.lines
    return report.lines


def test_modes(monkeypatch) -> None:
    lines = lines_of(check_modes, monkeypatch)
    *_, segmented, _, ragged = lines
    assert segmented.values["splits"] == [2, 4, 8]
    assert ragged.values["splits"] == [1, 2, 4, 8]


def test_captured_attention(monkeypatch) -> None:
    shape = make_shape((4, 2), 16, window=130)
    monkeypatch.setattr(attention_numerics, "shapes_of", lambda scale: {"full": shape})
    lines = {line.name: line.values for line in lines_of(check_backends, monkeypatch)}
    assert len(lines) == 6
    assert lines["triton_paged full captured decode"]["steps"] == 4
    assert lines["triton_paged full captured ragged"]["steps"] == 4
