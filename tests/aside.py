"""Running a test file in a process of its own: Triton's interpreter is chosen at its import."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton: not installed")


def run_aside(path: Path, *arguments: str, **env: str) -> None:
    """Run pytest on one file in its own process; its report is this test's failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [*command, str(path)],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
