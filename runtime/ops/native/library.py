"""Building and loading the kernels, or saying once why there are none."""

from __future__ import annotations

import functools
import logging

from attention_backends import NativeBuildError, load_library
from runtime.ops.native.linear import LinearKernels
from runtime.ops.native.logits import LogitsKernels
from runtime.ops.native.sources import ops_source

_log = logging.getLogger(__name__)


class NativeOps(LogitsKernels, LinearKernels):
    """The kernels of one library; see the twins for what each op does."""


@functools.cache
def native_ops() -> NativeOps | None:
    """The kernels for this CPU, compiled at the first call; None where they cannot be had, which is
    logged."""
    try:
        return NativeOps(load_library(ops_source()))
    except NativeBuildError as error:
        _log.warning("ops run in plain torch, which is slower: %s", error)
        return None
