"""`stepgraph chat` over a tiny model, its input a pipe."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli.conversation import Conversation
from runtime.errors import RequestError
from runtime.front.api import Runtime
from tests.serving import TEMPLATE, run_config, write_model

ROOT = Path(__file__).parents[3]
FLAGS = (
    *("--set", "model.format=dummy", "--set", "engine.threads=1", "--set", "cache.num_blocks=1100"),
    *("--set", "cache.block_size=4", "--set", "engine.device=cpu"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def runtime(model):
    with Runtime(run_config(model, sampling={"temperature": 0, "ignore_eos": True})) as made:
        yield made


def test_what_was_said_is_remembered(runtime):
    talk = Conversation(runtime, "be brief", max_tokens=4)
    first = "".join(talk.answer("hello", lambda: False))
    assert [(m["role"], m["content"]) for m in talk.messages] == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", first),
    ]
    chat = [*talk.messages, {"role": "user", "content": "again"}]
    second = "".join(talk.answer("again", lambda: False))
    assert second == runtime.generate(chat, {"max_tokens": 4})[0].text
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_an_answer_that_is_stopped_is_remembered_as_far_as_it_came(runtime):
    talk = Conversation(runtime, None, max_tokens=None)
    parts = []
    for part in talk.answer("hello", lambda: len(parts) > 2):
        parts.append(part)
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(parts)}
    assert len(parts) < 10
    assert not runtime.engine.has_unfinished()


def test_an_answer_fills_what_the_length_leaves(model):
    config = run_config(model, model={"max_model_len": 50}, sampling={"ignore_eos": True})
    with Runtime(config) as runtime:
        list(Conversation(runtime, None, None).answer("hello", lambda: False))
        assert runtime.stats().prompt_tokens + runtime.stats().output_tokens == 50


def test_what_is_too_long_is_not_remembered(runtime):
    talk = Conversation(runtime, None, max_tokens=4)
    with pytest.raises(RequestError, match="5019 tokens"):
        list(talk.answer("x" * 5000, lambda: False))
    assert talk.messages == []


def test_a_conversation_through_a_pipe(call, model, monkeypatch):
    said = "hello\n\none \\\ntwo\n" + "x" * 5000 + "\n/reset\nhello\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    flags = ("--max-tokens", "3", "--set", "sampling.temperature=0")
    status, out, err = call("chat", "--model", model, *FLAGS, *flags)
    assert status == 0, err
    assert err.count("5019") == 0
    assert "tokens; at most 4095 fit" in err
    assert "/reset" in err
    first = out.splitlines()[0]
    assert out.endswith(f"{first}\n")


def test_a_model_that_cannot_chat(call, tmp_path):
    model = write_model(tmp_path / "model", chat_template=None)
    status, _, err = call("chat", "--model", model, *FLAGS)
    assert status == 2
    assert "no chat template" in err
    assert TEMPLATE not in err


def test_bad_length(call, model):
    status, _, err = call("chat", "--model", model, *FLAGS, "--max-tokens", "0")
    assert status == 2
    assert "--max-tokens: must be an integer >= 1, got 0" in err


def test_an_interrupt_stops_the_answer_and_not_the_program(model):
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPGRAPH_")}
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "runtime", "chat", "--model", str(model), *FLAGS),
            *("--set", "sampling.ignore_eos=true", "--set", "sampling.temperature=0"),
        ],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.read(3)  # the answer has begun
        process.send_signal(signal.SIGINT)
        assert any(b"stopped" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)  # at the prompt
        assert any(b"Ctrl-D ends" in line for line in process.stderr)
        _, err = process.communicate(b"/reset\n", timeout=60)
    assert process.returncode == 0, err
