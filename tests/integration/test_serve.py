"""`stepgraph serve` as a process, and the official client of OpenAI's API against it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel

from tests.serving import write_model

ROOT = Path(__file__).parents[2]
CHAT = [{"role": "user", "content": "hello"}]
GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 12}
IGNORE = {"extra_body": {"ignore_eos": True}}


class Process:
    """The server as a process of its own."""

    def __init__(self, model, *flags):
        env = {k: v for k, v in os.environ.items() if not k.startswith("STEPGRAPH_")}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "runtime", "serve", "--model", str(model), "--port", "0"),
                *("--set", "model.format=dummy", "--set", "engine.device=cpu"),
                *("--set", "engine.threads=1", "--set", "cache.num_blocks=1100"),
                *("--set", "cache.block_size=4", "--set", "server.model_name=tiny", *flags),
            ],
            cwd=ROOT,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            found = re.search(r"serving tiny at (http://\S+)", line)
            if found:
                self.url = found[1]
                return
        raise AssertionError(self.said)

    def client(self, kind=openai.OpenAI):
        return kind(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def end(self, signum):
        """Its exit status, and all that it said."""
        self.process.send_signal(signum)
        return self.wait()

    def wait(self):
        _, rest = self.process.communicate(timeout=60)
        self.said += rest
        assert "Traceback" not in self.said
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(model):
    with Process(model) as process:
        yield process
        assert process.end(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def client(server):
    with server.client() as made:
        yield made


def test_a_completion(client):
    answer = client.completions.create(prompt="hello", **GREEDY, **IGNORE)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 17
    stream = client.completions.create(prompt="hello", stream=True, **GREEDY, **IGNORE)
    assert "".join(part.choices[0].text for part in stream) == answer.choices[0].text


def test_a_chat(client):
    answer = client.chat.completions.create(messages=CHAT, **GREEDY, **IGNORE)
    assert answer.choices[0].message.role == "assistant"
    again = client.chat.completions.create(messages=CHAT, **GREEDY, **IGNORE)
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    with client.chat.completions.stream(
        messages=CHAT, stream_options={"include_usage": True}, **GREEDY, **IGNORE
    ) as stream:
        stream.until_done()
        final = stream.current_completion_snapshot
    assert final.choices[0].message.content == answer.choices[0].message.content
    assert final.usage.completion_tokens == 12


def test_many_at_once(server):
    async def main():
        async with server.client(openai.AsyncOpenAI) as client:
            one = await client.chat.completions.create(messages=CHAT, **GREEDY, **IGNORE)

            async def streamed():
                parts = await client.chat.completions.create(
                    messages=CHAT, stream=True, **GREEDY, **IGNORE
                )
                return "".join([part.choices[0].delta.content or "" async for part in parts])

            texts = await asyncio.gather(*(streamed() for _ in range(12)))
        assert set(texts) == {one.choices[0].message.content}

    asyncio.run(main())


def test_logprobs(client):
    answer = client.chat.completions.create(
        messages=CHAT, logprobs=True, top_logprobs=2, **GREEDY, **IGNORE
    )
    [first, *_] = answer.choices[0].logprobs.content
    assert first.logprob == first.top_logprobs[0].logprob
    answer = client.completions.create(prompt="x", logprobs=2, echo=True, **GREEDY, **IGNORE)
    assert answer.choices[0].logprobs.token_logprobs[0] is None


class Switch(BaseModel):
    on: bool


def test_parsed(client):
    pytest.importorskip("llguidance")
    answer = client.chat.completions.parse(
        messages=CHAT,
        response_format=Switch,
        logit_bias={"32": -100, "10": -100, "9": -100, "13": -100},
        **{**GREEDY, "max_tokens": 200},
    )
    assert answer.choices[0].message.parsed.on in (True, False)


def test_tools(client):
    pytest.importorskip("llguidance")
    tool = openai.pydantic_function_tool(Switch, name="switch")
    answer = client.chat.completions.parse(
        messages=CHAT,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "switch"}},
        logit_bias={"32": -100, "10": -100, "9": -100, "13": -100},
        **{**GREEDY, "max_tokens": 200},
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments.on in (True, False)


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"colour": 1}}, openai.BadRequestError, "colour"),
        ({"messages": []}, openai.BadRequestError, "messages"),
    ],
)
def test_errors_are_those_of_the_client(client, change, error, param):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"messages": CHAT, **GREEDY, **change})
    assert caught.value.param == param


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def begin(process, max_tokens):
    """A stream that has begun."""
    stream = process.client().completions.create(
        prompt="x", stream=True, **{**GREEDY, "max_tokens": max_tokens}, **IGNORE
    )
    next(stream)
    return stream


@pytest.mark.case("SH05")
def test_sigterm_lets_requests_end(model):
    with Process(model) as process:
        pid = process.process.pid
        assert not Path(f"/proc/{pid}/task/{pid}/children").read_text()  # none could be orphaned
        stream = begin(process, 500)
        process.process.send_signal(signal.SIGTERM)
        assert [part.choices[0].finish_reason for part in stream][-1] == "length"
        assert process.wait() == 0
    assert "1 requests may end within 30 s" in process.said


@pytest.mark.case("SH03")
@pytest.mark.parametrize(
    ("signum", "flags", "status"),
    [(signal.SIGTERM, ("--set", "server.drain_s=0.1"), 1), (signal.SIGINT, (), 130)],
)
def test_what_does_not_end_in_time_is_told(model, signum, flags, status):
    with Process(model, *flags) as process:
        stream = begin(process, 4000)
        process.process.send_signal(signum)
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass
        assert process.wait() == status
    assert "1 requests were cut off" in process.said


@pytest.mark.case("SH01")
def test_a_port_in_use_is_found_before_the_model_is(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(
            [
                *(sys.executable, "-X", "importtime", "-m", "runtime", "serve"),
                *("--model", str(tmp_path / "gone"), "--port", str(port)),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    assert f"server.port: 127.0.0.1:{port} cannot be listened on" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_model_that_cannot_be_loaded(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "serve", "--port", "0", "--model", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


def test_curl_needs_no_content_type(server):
    """As people type it."""
    import urllib.request

    data = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    with urllib.request.urlopen(f"{server.url}/v1/completions", data) as answer:
        assert json.load(answer)["object"] == "text_completion"
