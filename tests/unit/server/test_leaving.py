"""Clients that leave, and the door: what is inside, what must wait, what is told."""

import asyncio
import threading
import time

import httpx
import pytest

from runtime.front.api import Runtime
from runtime.front.input_processor import InputProcessor
from tests.serving import live_server, run_config

PATH = "/v1/completions"
LONG = {"prompt": "x", "temperature": 0, "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture
def small(model):
    """Two places, one of them to run in."""
    config = run_config(
        model, scheduler={"max_num_seqs": 1}, server={"max_queued": 1}, engine={"threads": 1}
    )
    with live_server(config) as server:
        yield server


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_idle(live):
    stats = live.stats()
    gate = live.service.gate
    return stats.num_running == stats.num_waiting == gate.num_inside == stats.blocks_used == 0


class Stream:
    """A stream that has begun, in a connection of its own."""

    def __init__(self, live, body=LONG):
        self._client = httpx.Client(base_url=live.url, timeout=60)
        request = self._client.build_request("POST", PATH, json={**body, "stream": True})
        self._answer = self._client.send(request, stream=True)
        self._lines = self._answer.iter_lines()
        next(self._lines)

    def rest(self):
        """The events that follow."""
        return [line for line in self._lines if line]

    def leave(self):
        self._answer.close()
        self._client.close()


@pytest.mark.parametrize("num_prompts", [1, 2])
def test_a_stream_whose_client_leaves_ends_at_once(live, num_prompts):
    before = live.stats().output_tokens
    Stream(live, {**LONG, "prompt": ["x", "y"][:num_prompts], "n": 2}).leave()
    until(lambda: is_idle(live))
    assert live.stats().output_tokens - before < 4 * 4000


@pytest.mark.case("SV05")
def test_a_client_that_does_not_wait_for_its_answer(live):
    before = live.stats()
    with pytest.raises(httpx.ReadTimeout):
        live.post(PATH, LONG, timeout=0.2)
    until(lambda: is_idle(live))
    after = live.stats()
    assert after.num_finished == before.num_finished + 1
    assert after.output_tokens - before.output_tokens < 4000


def test_a_full_house(small):
    """A third sample hears 429 and when to come again; then the places are free again."""
    streams = [Stream(small)]
    short = {**LONG, "max_tokens": 1}
    other = threading.Thread(target=lambda: streams.append(Stream(small, short)))
    other.start()
    until(lambda: small.service.gate.num_inside == 2)
    answer = small.post(PATH, {"prompt": "x"})
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "queue_full"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert small.http.get("/load").json() == {"server_load": 2}
    streams[0].leave()
    other.join(60)
    until(lambda: is_idle(small))
    assert small.post(PATH, {"prompt": "x"}).status_code == 200
    streams[1].leave()


def test_more_choices_than_there_are_places(small):
    answer = small.post(PATH, {"prompt": ["a", "b", "c"]})
    assert answer.status_code == 400
    assert "at most 2" in answer.json()["error"]["message"]


def test_while_the_server_ends_nobody_comes_in(small):
    async def close():
        small.service.gate.close()

    stream = Stream(small, {**LONG, "max_tokens": 500})
    small.in_loop(close())
    for path, body in ((PATH, {"prompt": "x"}), ("/health", None)):
        told = small.post(path, body) if body else small.http.get(path)
        assert told.status_code == 503
        assert told.json()["error"]["code"] == "shutting_down"
    *_, last, done = stream.rest()  # who was inside stays to the end
    assert '"finish_reason":"length"' in last
    assert done == "data: [DONE]"
    stream.leave()
    small.in_loop(asyncio.wait_for(small.service.gate.wait_empty(), 60))


def test_an_engine_that_stops_is_told_to_all(small):
    stream = Stream(small)
    small.in_loop(small.service.runtime.aclose())
    *_, last, done = stream.rest()
    assert '"code":"aborted"' in last
    assert done == "data: [DONE]"
    for path, body in ((PATH, {"prompt": "x"}), ("/health", None)):
        told = small.post(path, body) if body else small.http.get(path)
        assert told.status_code == 503
    stream.leave()


def test_neither_loop_nor_engine_encodes(live, monkeypatch):
    threads = []
    for name in ("encode", "settle_params"):
        done = getattr(InputProcessor, name)

        def noted(self, *args, _done=done, **kwargs):
            threads.append(threading.current_thread().name)
            return _done(self, *args, **kwargs)

        monkeypatch.setattr(InputProcessor, name, noted)
    assert live.post(PATH, {"prompt": "x", "max_tokens": 1}).status_code == 200
    assert len(threads) == 2
    assert all(name.startswith("stepgraph-text") for name in threads)


def test_priority_and_salt_reach_the_engine(live, monkeypatch):
    asked = []
    submit = Runtime.submit

    def noted(self, prepared, **request):
        asked.append(request)
        return submit(self, prepared, **request)

    monkeypatch.setattr(Runtime, "submit", noted)
    body = {"prompt": ["x", "y"], "max_tokens": 1, "priority": -3, "cache_salt": "mine"}
    assert live.post(PATH, body).status_code == 200
    assert [(r["priority"], r["cache_salt"]) for r in asked] == [(-3, "mine")] * 2
