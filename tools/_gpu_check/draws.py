"""Seeded draws on the device against the CPU's, on the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.data.params import SamplingParams
from runtime.data.step import NewRow
from runtime.sampling import Sampler
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale

LIMITS_OF_DRAWS: dict[str, dict[str, Any]] = {
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.02},
    "top-k": {"top_k": 50},
    "top-p, min-p and top-k": {"top_p": 0.8, "min_p": 0.01, "top_k": 200},
    "the whole vocabulary": {},
}
MOST_DIFFERING = 0.01
"""Of the draws: exp and sums are rounded otherwise, so that one may fall on the other side of a
border."""
FLATTEST, STEEPEST = 0.3, 6.0
"""Standard deviation of a row's logits: from rows that must be sorted to rows that their largest
scores settle."""
POSITIONS = (7, 8, 9, 10)


def check_draws(scale: Scale, report: Report, deadline: Deadline) -> None:
    """A line for each way to limit a draw and type of the logits."""
    for dtype in (torch.float32, torch.bfloat16):
        logits = _logits(scale).to(dtype)
        for name, params in LIMITS_OF_DRAWS.items():
            line = f"draws {name} {str(dtype).removeprefix('torch.')}"
            if deadline.is_over:
                report.skip("ops", line, "time limit")
                continue
            there, num_late = _draw(logits.to(scale.device), params)
            here, _ = _draw(logits, params, as_on_device=False)
            share = float((there != here).mean())
            report.check(
                "ops",
                line,
                share <= MOST_DIFFERING,
                f"more than {MOST_DIFFERING:.0%} differ from the CPU's",
                differing_share=share,
                draws=here.size,
                settled_late=num_late,
            )


def _logits(scale: Scale) -> Tensor:
    """[rows, V] float32 on the CPU."""
    generator = torch.Generator().manual_seed(5)
    steepness = torch.linspace(FLATTEST, STEEPEST, scale.draw_rows)[:, None]
    return torch.randn(scale.draw_rows, scale.draw_vocab, generator=generator) * steepness


def _draw(
    logits: Tensor, params: dict[str, Any], *, as_on_device: bool = True
) -> tuple[np.ndarray, int]:
    """[positions, rows] tokens, each row with a seed of its own, and how many of them the host had
    to settle.

    Args:
        as_on_device: take the way that looks at no value, which on a CPU is not the usual one.
    """
    rows = np.arange(len(logits), dtype=np.int32)
    known = np.zeros((len(rows), max(POSITIONS) + 1), np.int32)
    sampler = Sampler(logits.shape[1], known, logits.device)
    if as_on_device:
        sampler._may_read = False
    for row in rows.tolist():
        of_row = SamplingParams(temperature=0.7 + row % 4 / 4, seed=100 + row, **params)
        sampler.add(NewRow(row, f"r{row}", [0], 1, 0, [], of_row, ()))
    found = [sampler.sample(logits, rows, rows * 0 + position) for position in POSITIONS]
    sampler.close()
    return np.stack([out.token_ids for out in found]), sum(len(out.late) for out in found)
