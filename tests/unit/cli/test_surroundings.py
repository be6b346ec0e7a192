"""The command line where streams are full, the locale is poor, files are in other encodings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli import generate
from runtime.cli.main import run
from runtime.cli.work import collect_jobs
from runtime.config import EngineConfig, load_run_config
from runtime.config.encodings import other_encoding
from runtime.config.input_lines import read_lines
from runtime.errors import ConfigError
from runtime.machine.threads import threads_of
from tests.builders import write_config

ROOT = Path(__file__).parents[3]
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def start(folder, *words, env=None, **streams):
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


def test_a_row_in_latin_1_names_byte_and_place(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "Caf\xe9"}\n')
    good, bad = read_lines(str(path))
    assert good.error is None
    assert bad.error == f"{path}:2: no valid UTF-8: byte 0xe9 at position 16"


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CAFE = "Caf\N{LATIN SMALL LETTER E WITH ACUTE}"


def stepgraph(*words, **kw):
    kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kw}
    env = {**os.environ, **kw.pop("env", {})}
    return subprocess.run([sys.executable, "-m", "runtime", *words], cwd=ROOT, env=env, **kw)


def test_a_run_file_comes_out_whole_under_an_ascii_locale(tmp_path):
    source, copy = tmp_path / "run.yaml", tmp_path / "copy.yaml"
    source.write_text(f"model: {{path: x}}\nrequests: [{{prompt: {CAFE}}}]\n", encoding="utf-8")
    done = stepgraph("show-config", "--config", str(source), env=ASCII)
    assert done.returncode == 0, done.stderr
    copy.write_bytes(done.stdout)
    assert load_run_config(str(copy), [], {})[0].requests[0].prompt == CAFE


@pytest.mark.parametrize("command", [("show-config", "--explain"), ("check",)])
def test_a_name_that_the_locale_cannot_show(tmp_path, command):
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{path: {CAFE}}}\n", encoding="utf-8")
    done = stepgraph(*command, "--config", str(path), env=ASCII)
    assert done.returncode == (3 if command == ("check",) else 0), done.stderr
    assert b"Caf\\xe9" in done.stdout


@pytest.mark.parametrize("by", ["set", "env"])
def test_a_path_and_a_stop_string_under_an_ascii_locale(tmp_path, by):
    folder = write_config(tmp_path / CAFE)
    flags = [f"model.path={folder}", f"sampling.stop=['{CAFE}']"]
    variables = {"STEPGRAPH_MODEL__PATH": str(folder), "STEPGRAPH_SAMPLING__STOP": f"['{CAFE}']"}
    words = [word for flag in flags for word in ("--set", flag)] if by == "set" else []
    env = {**ASCII, **(variables if by == "env" else {})}
    done = stepgraph("check", "--set", "model.format=dummy", *words, env=env)
    assert done.returncode == 0, done.stdout
    assert b"Caf\\udcc3\\udca9" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_that_cannot_be_written(words, buffering):
    with open("/dev/full", "wb") as full:
        done = stepgraph(*words, stdout=full, env=buffering)
    assert (done.returncode, done.stderr) == (
        5,
        b"stepgraph: error: No space left on device\n",
    )


def test_a_system_that_starts_no_more_threads_is_one_line(monkeypatch, capsys):
    def refuse(args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(generate, "run", refuse)
    assert run(["generate", "--model", "x"]) == 5
    assert capsys.readouterr().err.startswith("stepgraph: error: the system starts no more threads")
