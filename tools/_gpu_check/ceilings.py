"""What the machine can do at best: bytes copied, and operations of matrix products, a second."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tools._gpu_check.clock import time_calls
from tools._gpu_check.report import Report
from tools._gpu_check.scale import Scale


class Ceilings(NamedTuple):
    """The rates by which floors are reckoned."""

    bytes_per_ms: float
    """of a copy, read and written bytes both counted"""
    ops_per_ms: float
    """of a large matrix product of random values in the model's type; a multiply-add is two"""


def measure(scale: Scale, dtype: torch.dtype, report: Report) -> Ceilings:
    """Measure both on random data; zeros run faster."""
    n = scale.matrix_size
    found = Ceilings(2 * scale.copy_bytes / _copy_ms(scale), 2 * n**3 / _product_ms(scale, dtype))
    report.add("ceilings", "copy", "ok", TB_per_s=found.bytes_per_ms / 1e9, bytes=scale.copy_bytes)
    report.add("ceilings", "matrix product", "ok", TFLOP_per_s=found.ops_per_ms / 1e9, size=n)
    return found


def _copy_ms(scale: Scale) -> float:
    count = scale.copy_bytes // 2
    source = torch.empty(count, dtype=torch.int16, device=scale.device).random_()
    target = torch.empty_like(source)
    return time_calls(lambda: target.copy_(source), scale.device, repeats=scale.repeats)


def _product_ms(scale: Scale, dtype: torch.dtype) -> float:
    n = scale.matrix_size
    a, b = (torch.randn(n, n, device=scale.device).to(dtype) for _ in range(2))
    out = torch.empty(n, n, dtype=dtype, device=scale.device)
    return time_calls(lambda: torch.mm(a, b, out=out), scale.device, repeats=scale.repeats)
