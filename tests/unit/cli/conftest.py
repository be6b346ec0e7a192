"""`stepgraph` called in this process, over a fake Runtime."""

import logging
import os

import pytest

from runtime.cli import generate
from runtime.cli.main import run as run_in_process
from runtime.cli.options import LOGGERS
from tests.unit.cli.fakes import FakeRuntime


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch):
    """No variable of ours is set, and logging is as before afterwards."""
    for name in [n for n in os.environ if n.startswith("STEPGRAPH_")]:
        monkeypatch.delenv(name)
    yield
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def opened(monkeypatch):
    """Every fake Runtime that a command opened."""
    runtimes = []

    def open_fake(config):
        runtimes.append(FakeRuntime(config))
        return runtimes[-1]

    monkeypatch.setattr(generate, "open_runtime", open_fake)
    return runtimes


@pytest.fixture
def call(capsys):
    """call(*argv) -> (exit status, standard output, standard error)"""

    def run(*argv):
        try:
            status = run_in_process([str(a) for a in argv])
        except SystemExit as exit_:
            status = exit_.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def run_file(tmp_path):
    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
