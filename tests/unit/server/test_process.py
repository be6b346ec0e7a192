"""The process around the server: a signal while the model is loaded."""

import asyncio
import os
import signal
from types import SimpleNamespace

from runtime.cli import serve as command
from runtime.config import ServerConfig
from runtime.server import process
from runtime.server.keys import ApiKeys
from runtime.server.listen import open_socket
from tests.serving import run_config


def test_a_signal_while_the_model_is_loaded(tmp_path):
    """It is not kept waiting until the model is there."""

    async def never():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    def make(*_, **__):
        return SimpleNamespace(inputs=never)

    config = run_config(tmp_path)
    with open_socket(config.server) as listener:
        ending = asyncio.run(process.serve(config, listener, ApiKeys([]), make))
    assert ending == process.Ending(signal.SIGTERM, 0, was_loading=True)


def test_the_exit_status(monkeypatch, capsys):
    exits = []
    monkeypatch.setattr(command.os, "_exit", exits.append)
    assert command._end(process.Ending(signal.SIGTERM, 0)) == 0
    assert command._end(process.Ending(signal.SIGTERM, 2)) == 1
    assert command._end(process.Ending(signal.SIGINT, 0)) == 130
    assert exits == []
    command._end(process.Ending(signal.SIGTERM, 0, was_loading=True))
    assert exits == [143]
    assert "interrupted" in capsys.readouterr().err


def test_others_are_kept_out_unless_told_otherwise():
    assert ServerConfig().host == "127.0.0.1"
