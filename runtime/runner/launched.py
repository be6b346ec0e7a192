"""A step between its launch and the moment when the host has its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.data.step import IntArray, Logprobs, StepShape
from runtime.sampling import PendingSample


@dataclass(frozen=True, slots=True)
class Samples:
    """The rows [S] for which a step samples a token."""

    rows: IntArray
    positions: IntArray
    """of the new tokens"""
    tenancy: npt.NDArray[np.int64]
    """`RequestStates.tenancy` of the rows"""
    pending: PendingSample


@dataclass(slots=True)
class Launched:
    """What `ModelRunner.collect` needs of a step."""

    shape: StepShape
    samples: Samples | None = None
    """None where no row samples"""
    prompt_logprobs: dict[int, list[Logprobs]] = field(default_factory=dict)
