"""Building and loading the kernels, or saying once why there are none."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from attention_backends import NativeBuildError, NativeSource, load_library
from runtime.ops.native.linear import LinearKernels
from runtime.ops.native.logits import LogitsKernels

_FOLDER = Path(__file__).parent
_FLAGS = ("-ffp-contract=fast", "-Wno-maybe-uninitialized")
_log = logging.getLogger(__name__)


class NativeOps(LogitsKernels, LinearKernels):
    """The kernels of one library; see the twins for what each op does."""


def ops_source(name: str = "ops", flags: tuple[str, ...] = ()) -> NativeSource:
    """The sources of the library, to be built with `flags` in addition."""
    linears = ("linear", "linear_dot", "linear_tiles", "linear_int8", "linear_q8_0")
    names = ("elementwise", "rows", "logits", *linears, "pack", "units")
    files = tuple(_FOLDER / f"{file}.cpp" for file in names)
    return NativeSource(name, files, (*_FLAGS, *flags))


@functools.cache
def native_ops() -> NativeOps | None:
    """The kernels for this CPU, compiled at the first call; None where they cannot be had, which is
    logged."""
    try:
        return NativeOps(load_library(ops_source()))
    except NativeBuildError as error:
        _log.warning("ops run in plain torch, which is slower: %s", error)
        return None
