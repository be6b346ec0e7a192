"""Compiling kernels with the machine's own C++ compiler, once, into a folder of the user.

A library is keyed by its sources, the compiler's version, the flags and the CPU; it is published
whole or not at all, and several processes may ask for it at once. Nothing is compiled at install
time, so that installing needs neither torch nor a compiler.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from attention_backends._native.cpu import ISA_FLAGS, able_isas, cpu_features

log = logging.getLogger(__name__)

CACHE_DIR_VARIABLE = "STEPGRAPH_CACHE_DIR"
COMPILER_VARIABLE = "CXX"
ABI_FOLDER = Path(__file__).parent
"""Where `stepgraph_kernel.h` is; on the include path of every library."""
COMMON_FLAGS = (
    *("-std=gnu++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno"),
    "-fno-trapping-math",
)
_COMPILE_TIMEOUT_S = 600.0
_LONGEST_MESSAGE = 2000


class NativeBuildError(RuntimeError):
    """Native kernels cannot be had here; says why, and what to do."""


@dataclass(frozen=True)
class NativeSource:
    """The sources of one library. All headers of their folders belong to its key."""

    name: str
    """Of the library; a file name."""
    files: tuple[Path, ...]
    """C++ files, each compiled apart and at the same time."""
    flags: tuple[str, ...] = ()
    """Added to the common ones and to those of the instruction set."""


INSTRUCTIONS = NativeSource("instructions", (ABI_FOLDER / "instructions.cpp",))


def compiler_problem() -> str:
    """Why nothing can be compiled here; "" where a compiler was found."""
    try:
        _compiler()
    except NativeBuildError as error:
        return str(error)
    return ""


@functools.cache
def best_isa() -> str:
    """The most able instruction set that the compiler knows and the CPU has: its flags say so, and
    a process that ran such instructions came to its end.

    Raises:
        NativeBuildError: no compiler.
    """
    compiler, _ = _compiler()
    return next(i for i in reversed(able_isas()) if _accepts(compiler, ISA_FLAGS[i]) and _runs(i))


def build(source: NativeSource, isa: str) -> Path:
    """The compiled library, from the cache or, with a line on stderr, made now.

    Args:
        isa: a key of `ISA_FLAGS`.

    Raises:
        NativeBuildError: no compiler, the compiler failed, or the cache cannot be written.
    """
    compiler, version = _compiler()
    flags = (*COMMON_FLAGS, *ISA_FLAGS[isa], f"-DSTEPGRAPH_ISA_{isa.upper()}=1", *source.flags)
    folder = cache_folder()
    target = folder / f"{source.name}-{isa}-{_key(source, compiler, version, flags)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():
                for stale in folder.glob(f".{target.name}.*"):  # of a process that was killed
                    shutil.rmtree(stale, ignore_errors=True)
                _compile_and_publish(source, isa, compiler, flags, target)
    except OSError as error:
        raise NativeBuildError(
            f"cannot keep compiled kernels in {folder}: {error.strerror or error}; name a folder "
            f"that can hold them with the environment variable {CACHE_DIR_VARIABLE}"
        ) from error
    return target


def _runs(isa: str) -> bool:
    """Whether the set's instructions run here, tried once in a process of its own; a virtual CPU
    may list what it does not have."""
    if isa == "portable":
        return True
    library = build(INSTRUCTIONS, isa)
    ran = library.with_suffix(".ran")
    if ran.exists():
        return True
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).stepgraph_instructions()"
    command = [sys.executable, "-I", "-c", code, str(library)]
    status = subprocess.run(command, capture_output=True, timeout=_COMPILE_TIMEOUT_S).returncode
    if status:
        log.warning("%s is passed over: the CPU lists it, but a trial ended with %d", isa, status)
        return False
    with contextlib.suppress(OSError):  # where nothing can be kept it is tried each time
        ran.touch()
    return True


def cache_folder() -> Path:
    """Where compiled libraries are kept; need not exist yet."""
    root = os.environ.get(CACHE_DIR_VARIABLE) or "~/.cache/stepgraph"
    return Path(root).expanduser() / "native"


def _compiler() -> tuple[str, str]:
    """(command, version); a changed environment is seen."""
    return _find_compiler(os.environ.get(COMPILER_VARIABLE, ""), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(wanted: str, path: str) -> tuple[str, str]:
    names = [wanted] if wanted else ["g++", "c++"]
    found = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if found is None:
        raise NativeBuildError(
            f"no C++ compiler: {' or '.join(names)} is not on the PATH; install g++ 9 or newer, or "
            f"name one with the environment variable {COMPILER_VARIABLE}"
        )
    try:
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeBuildError(f"the C++ compiler {found} cannot be run: {error}") from error
    if asked.returncode:
        raise NativeBuildError(f"the C++ compiler {found} fails: {asked.stderr.strip()}")
    return found, asked.stdout.partition("\n")[0]


def _accepts(compiler: str, flags: Sequence[str]) -> bool:
    command = [compiler, *flags, "-x", "c++", "-E", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def _key(source: NativeSource, compiler: str, version: str, flags: Sequence[str]) -> str:
    folders = sorted({file.parent for file in source.files} | {ABI_FOLDER})
    headers = [header for folder in folders for header in sorted(folder.glob("*.h"))]
    parts = [source.name, compiler, version, *flags, *sorted(cpu_features())]
    digest = hashlib.sha256("\0".join(parts).encode())
    for file in (*source.files, *headers):
        digest.update(f"\0{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:20]


def _compile_and_publish(
    source: NativeSource, isa: str, compiler: str, flags: Sequence[str], target: Path
) -> None:
    begin_s = time.perf_counter()
    print(f"stepgraph: compiling {source.name} kernels ({isa}), once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        with ThreadPoolExecutor(max_workers=len(source.files)) as pool:
            jobs = [
                pool.submit(_compile_object, compiler, flags, file, Path(temporary))
                for file in source.files
            ]
            objects = [str(job.result()) for job in jobs]
        library = Path(temporary) / "library.so"
        # OpenMP's symbols are left open, and bound at load to the runtime that torch has loaded.
        shared = ("-shared", "-Wl,--allow-shlib-undefined", "-o", str(library))
        _run([compiler, "-fPIC", *objects, *shared], source.name)
        _sync(library)
        library.replace(target)
    log.info("compiled %s in %.1f s", target.name, time.perf_counter() - begin_s)


def _compile_object(compiler: str, flags: Sequence[str], file: Path, folder: Path) -> Path:
    target = folder / f"{file.stem}.o"
    includes = ("-I", str(ABI_FOLDER), "-I", str(file.parent))
    _run([compiler, *flags, *includes, "-c", str(file), "-o", str(target)], file.name)
    return target


def _run(command: list[str], what: str) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise NativeBuildError(
            f"compiling {what} took more than {_COMPILE_TIMEOUT_S:.0f} s"
        ) from error
    if result.returncode:
        log.info("%s\n%s", " ".join(command), result.stderr[:_LONGEST_MESSAGE])
        lines = result.stderr.splitlines() or [f"status {result.returncode}"]
        reason = next((line for line in lines if "error" in line.lower()), lines[0])
        raise NativeBuildError(f"compiling {what} with {command[0]} failed: {reason.strip()}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
