"""The CPU threads of a step: how many there are, and the cores that they keep to.

torch has one count of threads and, for each thread that calls it, one pool of OpenMP workers. Other
engines of the process share both, so each step takes what its engine was given.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from attention_backends import NativeBuildError, NativeKernel, launch
from runtime.config import format_cores, parse_cores
from runtime.errors import ConfigError
from runtime.machine.cgroup import ROOT, cpu_quotas

if TYPE_CHECKING:
    from runtime.config import EngineConfig


class _NoArgs(ctypes.Structure):
    _fields_ = ()


_KEY = "engine.bind_cores"
_OMP_VARIABLE = "OMP_NUM_THREADS"
_MOST_THREADS, _MOST_PER_CPU = 256, 8
"""Threads of a step: more than this, or than so many a CPU, is a slip."""
_log = logging.getLogger(__name__)


class StepThreads:
    """The context that a step runs in.

    Where cores are bound, worker i keeps to core i from its first step until `close`, and the
    calling thread to all of them for as long as the step runs: a thread or process that it starts
    later is not confined.

    Args:
        count: of threads, the calling one included.
        cores: one for each thread; empty binds none.

    Raises:
        ConfigError: cores cannot be bound here.
    """

    def __init__(self, count: int, cores: Sequence[int] = ()) -> None:
        self.count = count
        self.cores = tuple(cores)
        self._before: set[int] = set()
        """The caller's cores, while a step runs."""
        self._caller = 0
        self._workers: dict[int, int] = {}
        """The system's number of each worker that was bound last -> its core."""
        self._bound: dict[int, set[int]] = {}
        """Each worker that was ever bound -> the cores that its caller had then."""
        if cores:
            try:
                workers_of_pool(count)
            except NativeBuildError as error:
                raise ConfigError(f"{_KEY}: it needs a native kernel: {error}") from error

    def __enter__(self) -> None:
        self.set_count()
        if self.cores:
            self._before = os.sched_getaffinity(0)
            if not self._are_bound():
                self._bind()
            os.sched_setaffinity(0, self.cores)

    def __exit__(self, *_: object) -> None:
        if self.cores:
            os.sched_setaffinity(0, self._before)

    def set_count(self) -> None:
        """Give torch this engine's count, if another one is set."""
        if torch.get_num_threads() != self.count:
            torch.set_num_threads(self.count)

    def close(self) -> None:
        """Let the workers run where they could before; twice is harmless."""
        alive = _threads_of_process()
        for worker, before in self._bound.items():
            if worker in alive:
                with contextlib.suppress(ProcessLookupError):  # its pool is being left just now
                    os.sched_setaffinity(worker, before)
        self._bound.clear()
        self._workers.clear()

    def _are_bound(self) -> bool:
        """Whether the pool is still as it was left: the last worker goes first where another
        engine runs with fewer, and a new pool serves where another thread calls."""
        if self._caller != threading.get_native_id():
            return False
        if not self._workers:
            return self.count == 1
        worker, core = next(reversed(self._workers.items()))
        try:
            return os.sched_getaffinity(worker) == {core}
        except ProcessLookupError:
            return False

    def _bind(self) -> None:
        self._caller = threading.get_native_id()
        workers = workers_of_pool(self.count)
        self._workers = dict(zip(workers, self.cores[1:], strict=False))
        for worker, core in self._workers.items():
            self._bound.setdefault(worker, self._before)
            os.sched_setaffinity(worker, {core})


def threads_of(config: EngineConfig) -> StepThreads:
    """What `engine.threads` and `engine.bind_cores` come to here.

    Raises:
        ConfigError: cores that this process may not run on, or fewer than there are threads.
    """
    source = "engine.threads" if config.threads != "auto" else _OMP_VARIABLE
    wanted = config.bind_cores
    _check_count(_count_of(config.threads), source)
    if not wanted:
        count, usable = _count_of(config.threads), num_usable_cpus()
        if count > usable:
            _log.warning(
                "%s: %d threads on %d usable CPUs wait for each other; steps may take many times "
                "as long as with %d",
                *(source, count, usable, usable),
            )
        return StepThreads(count)
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(f"{_KEY}: this system cannot bind threads to cores; allowed here: false")
    allowed = os.sched_getaffinity(0)
    if isinstance(wanted, str):
        cores = parse_cores(wanted)
        outside = sorted(set(cores) - allowed)
        if outside:
            raise ConfigError(
                f"{_KEY}: this process may not run on {format_cores(outside)}; allowed here: "
                f"{format_cores(allowed)}"
            )
        count = len(cores) if config.threads == "auto" else _count_of(config.threads)
    else:
        cores = spread_cores(allowed)
        count = _count_of(config.threads)
    if count > len(cores):
        raise ConfigError(
            f"{_KEY}: {format_cores(cores)} are {len(cores)} cores for the {count} threads of "
            f"{source}; each needs one"
        )
    return StepThreads(count, cores[:count])


def _check_count(count: int, source: str) -> None:
    """Refuse a number of threads that no one means, or that the system would not start."""
    cpus, most = os.cpu_count() or 1, _most_threads()
    if count > most:
        raise ConfigError(
            f"{source}: {count} threads cannot be started; this machine has {cpus} CPUs, and at "
            f"most {most} threads are allowed here"
        )


def _most_threads() -> int:
    """Some for each CPU, and half of the processes that the user may have (`ulimit -u`)."""
    most = max(_MOST_THREADS, _MOST_PER_CPU * (os.cpu_count() or 1))
    try:
        import resource
    except ImportError:  # no such limits on this system
        return most
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, limit // 2))


def workers_of_pool(count: int) -> list[int]:
    """The system's numbers of the OpenMP workers that serve the calling thread, which is none of
    them, in their order; they are started now if need be."""
    numbers: dict[int, int] = {}

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    def note(_: int, team: ctypes.Array[ctypes.c_int]) -> None:
        numbers[team[0]] = threading.get_native_id()

    address = ctypes.cast(note, ctypes.c_void_p).value or 0
    launch(NativeKernel("note_thread", address), _NoArgs(), (), count)
    return [numbers[thread] for thread in sorted(numbers) if thread]


def spread_cores(allowed: set[int], root: Path = ROOT) -> list[int]:
    """The cores in the order in which threads should take them: one hardware thread of each
    physical core, then the others."""
    seen: dict[str, int] = {}

    def rank(core: int) -> int:
        siblings = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        try:
            physical = (root / siblings).read_text()
        except OSError:
            return 0
        seen[physical] = seen.get(physical, -1) + 1
        return seen[physical]

    ranks = {core: rank(core) for core in sorted(allowed)}
    return sorted(ranks, key=lambda core: (ranks[core], core))


def num_usable_cpus(root: Path = ROOT) -> int:
    """OMP_NUM_THREADS where it is set; else the CPUs of the affinity mask, capped by the quotas of
    the process's cgroup and of those above it, so that a container is not oversubscribed.

    Args:
        root: where /proc and /sys are.
    """
    asked = os.environ.get(_OMP_VARIABLE, "").split(",")[0]
    if asked.isdecimal() and int(asked):
        return int(asked)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([cpus, *(max(1, int(quota)) for quota in cpu_quotas(root))])


def _count_of(wanted: int | str) -> int:
    return wanted if isinstance(wanted, int) else num_usable_cpus()


def _threads_of_process() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()
