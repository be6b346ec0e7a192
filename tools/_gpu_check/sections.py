"""The sections in their order; importing them takes torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tools._gpu_check import ceilings
from tools._gpu_check.attention_numerics import check_backends
from tools._gpu_check.draws import check_draws
from tools._gpu_check.exactness import check_modes
from tools._gpu_check.op_numerics import check_ops
from tools._gpu_check.overlap import check_overlap
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale, spec_of
from tools._gpu_check.speed import check_speed
from tools._gpu_check.subject import load

Section = Callable[[Scale, Report, Deadline], None]


def _ops(scale: Scale, report: Report, deadline: Deadline) -> None:
    check_ops(scale, report, deadline)
    check_draws(scale, report, deadline)


def _exact(scale: Scale, report: Report, deadline: Deadline) -> None:
    check_overlap(scale, report, deadline)
    check_modes(scale, report, deadline)


def _speed(scale: Scale, report: Report, deadline: Deadline) -> None:
    if deadline.is_over:
        report.skip("speed", "everything", "time limit")
        return
    spec = spec_of(scale.speed_config)
    found = ceilings.measure(scale, getattr(torch, spec.dtype), report)
    check_speed(scale, load(spec, scale.device), found, report, deadline)


SECTIONS: dict[str, Section] = {
    "ops": _ops,
    "attention": check_backends,
    "exact": _exact,
    "speed": _speed,
}
