"""FlashInfer's own Python, fetched from the package registry once and kept in pytest's cache.

Of its wheel only the Python files are unpacked: kernels are not compiled here. Whoever has no
registry at hand skips what needs it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

RECORDED = json.loads((Path(__file__).parent / "signatures.json").read_text())["flashinfer-python"]
PINNED = f"flashinfer-python=={RECORDED['version']}"
NEIGHBOURS = ("apache-tvm-ffi>=0.1.11,<0.2", "nvidia-ml-py", "tabulate")
"""What its import needs beside what we have; of their own requirements nothing is imported."""
FETCH_S = 120
QUICK = ("--disable-pip-version-check", "--quiet", "--retries", "0", "--timeout", "10", "--no-deps")


@contextmanager
def real_flashinfer(config: pytest.Config) -> Iterator[None]:
    """`import flashinfer` works inside: the installed one, else the fetched one; or it skips."""
    if find_spec("flashinfer") is not None:
        yield
        return
    cache = getattr(config, "cache", None)
    if cache is None:
        pytest.skip("FlashInfer is not installed, and without pytest's cache it is not fetched")
    folder = cache.mkdir(PINNED.replace("==", "-")) / f"python-{sys.version_info.minor}"
    if not folder.exists():
        fetch(folder)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        patch.setenv("FLASHINFER_WORKSPACE_BASE", str(folder))
        patch.syspath_prepend(folder)
        before = set(sys.modules)
        importlib.import_module("flashinfer")
        yield
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "flashinfer":
                del sys.modules[name]


def fetch(folder: Path) -> None:
    """Make the folder, whole or not at all; skips the test where the registry does not answer."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        unpacked, downloads = Path(temporary, "unpacked"), Path(temporary, "downloads")
        only = ("--only-binary", ":all:")
        _pip("install", *only, "--target", str(unpacked), *NEIGHBOURS)
        _pip("download", *only, "--dest", str(downloads), PINNED)
        wheel = next(downloads.glob("*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != RECORDED["sha256"]:
            pytest.skip(f"the registry's {wheel.name} is not the one that was recorded")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py") and not name.startswith("flashinfer/data/"):
                    archive.extract(name, unpacked)
        try:
            unpacked.rename(folder)
        except OSError:  # another run was quicker
            assert folder.exists()


def _pip(command: str, *arguments: str) -> None:
    try:
        subprocess.run(
            [sys.executable, "-m", "pip", command, *QUICK, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"FlashInfer could not be fetched within {FETCH_S} s")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["pip said nothing"]
        pytest.skip(f"FlashInfer is not installed and cannot be fetched: {lines[-1][:200]}")
