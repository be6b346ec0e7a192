"""tools/_venv.sh: what an installation shows of itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAID = """\
Collecting torch
  Downloading torch-2.13.0-cp311-linux_x86_64.whl (190.5 MB)
Collecting six
  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)
Requirement already satisfied: numpy in ./lib (2.4)
Installing collected packages: six, torch
Successfully installed six-1.17.0
"""


@pytest.fixture
def bash(tmp_path):
    """bash(script) -> the process ended; `python -m pip` is a script that prints SAID."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "said").write_text(SAID)
    pip = folder / "python"
    pip.write_text(f'#!/bin/sh\ncat "{tmp_path}/said"\nexit "${{PIP_STATUS:-0}}"\n')
    pip.chmod(0o755)

    def run(script, **env):
        return subprocess.run(
            ["bash", "-c", f"set -euo pipefail; . {ROOT}/tools/_venv.sh; {script}"],
            cwd=tmp_path,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
class TestPipInstall:
    def test_larger_downloads_are_shown_and_nothing_else(self, bash, tmp_path):
        done = bash("pip_install torch")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == (
            "==   Downloading torch-2.13.0-cp311-linux_x86_64.whl (190.5 MB)\n==   unpacking\n"
        )
        assert (tmp_path / ".venv" / "pip.log").read_text() == SAID

    def test_a_failure_shows_what_pip_said(self, bash):
        done = bash("pip_install torch || pip_failed", PIP_STATUS="1")
        assert done.returncode == 1
        assert SAID in done.stderr
        assert done.stderr.endswith("== pip failed; all that it said is in .venv/pip.log\n")

    def test_silence_is_broken(self, bash):
        script = (
            "SILENCE_S=1; { printf 'a\\n'; sleep 2.5; printf '  Downloading x (2 MB)\\n'; } |"
            "show_progress"
        )
        done = bash(script)
        lines = done.stderr.splitlines()
        assert done.returncode == 0
        assert lines[-1] == "==   Downloading x (2 MB)"
        assert all(line.startswith("==   still at it after ") for line in lines[:-1])
        assert len(lines) >= 2
