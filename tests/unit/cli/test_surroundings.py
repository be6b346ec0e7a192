"""The command line where streams are full, the locale is poor, files are in other encodings."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli.work import collect_jobs
from runtime.config import EngineConfig, load_run_config
from runtime.config.encodings import other_encoding
from runtime.errors import ConfigError
from runtime.machine.threads import threads_of
from tests.builders import write_config

ROOT = Path(__file__).parents[3]
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def start(folder, *words, env=None, **streams):
    import os

    command = [sys.executable, "-m", "runtime", "generate", "--model", str(folder)]
    command += ["--set", "model.format=dummy", "--set", "model.max_model_len=32", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, **streams)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"token_ids": [3, 4], "max_tokens": 3}\n')
    return str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_stderr_does_not_cost_the_answer(tmp_path, lines):
    folder = write_config(tmp_path / "model")
    with open("/dev/full", "wb") as full:
        done = start(folder, "--input", lines, "--output", "-", stderr=full)
    assert done.returncode == 0
    assert b'"finish_reason": "length"' in done.stdout


def test_more_threads_than_can_be_started(tmp_path, lines):
    folder = write_config(tmp_path / "model")
    done = start(folder, "--input", lines, env={"OMP_NUM_THREADS": "99999"})
    assert done.returncode == 2
    assert done.stderr.startswith(b"stepgraph: error: OMP_NUM_THREADS: 99999 threads cannot be")
    assert done.stderr.count(b"\n") == 1
    with pytest.raises(ConfigError, match=r"engine\.threads: 99999 threads cannot be started"):
        threads_of(EngineConfig(threads=99999))


@pytest.mark.parametrize("kind", ["prompt", "chat"])
def test_arguments_are_utf_8_whatever_the_locale(kind):
    """Under an ASCII locale Python gives each byte that is no ASCII as a lone surrogate."""
    escaped, cafe = "Caf\udcc3\udca9", "Caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    run, _ = load_run_config(None, ["model.path=x", f"sampling={{stop: [{escaped}]}}"], {})
    [job] = collect_jobs(run, [(kind, escaped)], None, None)
    assert job.title == cafe
    assert run.sampling["stop"] == [cafe]
    [broken] = collect_jobs(run, [(kind, "Caf\udcc3")], None, None)
    assert broken.title == "Caf\udcc3"  # no UTF-8: refused later, with its place


@pytest.mark.parametrize("encoding", WIDE)
def test_an_input_in_another_encoding_is_one_error(tmp_path, encoding):
    path = tmp_path / "in.jsonl"
    path.write_bytes('{"prompt": "a"}\n{"prompt": "b"}\n'.encode(encoding))
    done = start(write_config(tmp_path / "model"), "--input", str(path))
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"is in UTF-" in done.stderr
    assert b"must be in UTF-8" in done.stderr


@pytest.mark.parametrize("encoding", WIDE)
def test_a_run_file_in_another_encoding_is_one_error(tmp_path, encoding):
    path = tmp_path / "run.yaml"
    path.write_bytes("model: {path: x}\n".encode(encoding))
    with pytest.raises(ConfigError, match="is in UTF-"):
        load_run_config(str(path), [], {})


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "\ufeff{}", "model: x", "é"])
def test_utf_8_is_no_other_encoding(text):
    assert other_encoding(text.encode()) == ""
