"""Loading native kernels and running them on torch's own OpenMP pool."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from attention_backends._native.build import (
    ABI_FOLDER,
    NativeBuildError,
    NativeSource,
    best_isa,
    build,
)

RUNNER = NativeSource("runner", (ABI_FOLDER / "runner.cpp",))
_loading = threading.Lock()


class Step(ctypes.Structure):
    """One kernel call of a list; `stepgraph_kernel.h`'s `Step`."""

    _fields_ = (("kernel", ctypes.c_void_p), ("args", ctypes.c_void_p))


@dataclass(frozen=True)
class NativeKernel:
    """A kernel of a loaded library; libraries stay loaded for the life of the process."""

    name: str
    address: int


class NativeLibrary:
    """A loaded library.

    Attributes:
        isa: the instruction set it was compiled for.
        path: its file.
        handle: for functions that are no kernels; their types are the caller's to declare.
    """

    def __init__(self, path: Path, isa: str) -> None:
        self.isa, self.path = isa, path
        self.handle = ctypes.CDLL(str(path))

    def kernel(self, name: str) -> NativeKernel:
        """Raises AttributeError where the library has no such function."""
        function = ctypes.cast(getattr(self.handle, name), ctypes.c_void_p)
        return NativeKernel(name, function.value or 0)


def load_library(source: NativeSource, isa: str | None = None) -> NativeLibrary:
    """Build what is missing and load it; one library per source and instruction set.

    Args:
        isa: None is the best here.

    Raises:
        NativeBuildError: it cannot be built or loaded here; says why.
    """
    with _loading:
        return _load(source, isa or best_isa())


@wrap_torch_function(lambda kernel, args, tensors, num_threads=None: tensors)
def launch(
    kernel: NativeKernel,
    args: ctypes.Structure,
    tensors: tuple[Tensor, ...],
    num_threads: int | None = None,
) -> None:
    """Run one kernel now, and wait for it.

    A torch function mode sees the call as it sees torch's own ops, so a recorder can keep it:
    what `args` points to must then live as long as the record.

    Args:
        args: the kernel's arguments.
        tensors: every tensor whose memory `args` points to.
        num_threads: None is torch's.
    """
    step = Step(kernel.address, ctypes.addressof(args))
    _runner()(ctypes.byref(step), 1, num_threads or torch.get_num_threads())


class StepList:
    """Kernel calls to be run together, in one parallel region with a barrier after each."""

    def __init__(self, calls: Sequence[tuple[NativeKernel, ctypes.Structure]]) -> None:
        """The arguments are kept alive; what they point to is the caller's."""
        self._args = [args for _, args in calls]
        self._steps = (Step * len(calls))(
            *(Step(kernel.address, ctypes.addressof(args)) for kernel, args in calls)
        )
        self._run = _runner()

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, num_threads: int | None = None) -> None:
        """Run them all now, and wait; `num_threads` None is torch's."""
        self._run(self._steps, len(self._steps), num_threads or torch.get_num_threads())


@functools.cache
def _load(source: NativeSource, isa: str) -> NativeLibrary:
    path = build(source, isa)
    _share_openmp()
    try:
        return NativeLibrary(path, isa)
    except OSError as error:
        raise NativeBuildError(
            f"cannot load the compiled {source.name} kernels: {error}"
        ) from error


@functools.cache
def _runner() -> Callable[..., None]:
    function: Any = load_library(RUNNER, "portable").handle.stepgraph_run
    function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    function.restype = None
    return function


def loaded_openmp() -> list[str]:
    """Files of the OpenMP runtimes in this process, each once."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {line.split()[-1] for line in maps if "/" in line}
    names = ("libgomp", "libiomp5", "libomp")
    return sorted(file for file in files if Path(file).name.startswith(names))


@functools.cache
def _share_openmp() -> None:
    """Open the symbols of torch's OpenMP runtime to the libraries that are loaded after it.

    Raises:
        NativeBuildError: torch has none, or one that g++'s code cannot call.
    """
    problem = "torch has loaded no OpenMP runtime to share"
    try:
        for file in loaded_openmp():
            library = ctypes.CDLL(file, mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)
            if hasattr(library, "GOMP_parallel"):
                return
            problem = f"torch's OpenMP runtime {file} lacks the entry points of g++"
    except OSError as error:
        problem = f"torch's OpenMP runtime cannot be shared: {error}"
    raise NativeBuildError(problem)
