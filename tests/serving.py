"""A server to test against: a tiny model with a tokenizer and a chat template, on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from runtime.config import RunConfig
from runtime.front.async_engine import AsyncRuntime
from runtime.server.app import make_app
from runtime.server.keys import ApiKeys
from runtime.server.listen import open_socket, url_of
from runtime.server.process import make_server
from runtime.server.service import Service
from tests.builders import write_config
from tests.unit.text import vocabularies

T = TypeVar("T")
EOS = 256
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[{{ name or 'assistant' }}]{% endif %}"
)


def write_model(folder: Path, chat_template: str | None = TEMPLATE) -> Path:
    """Random weights over bytes; token 256 is EOS. 4096 tokens long."""
    write_config(folder, vocab_size=300, eos_token_id=EOS, max_position_embeddings=4096)
    more = {} if chat_template is None else {"chat_template": chat_template}
    vocabularies.save_folder(folder, vocabularies.byte_level().backend, eos_token="<|end|>", **more)
    return folder


def run_config(folder: Path, **sections: Any) -> RunConfig:
    """Of a tiny model; `sections` are added to what is said here."""
    given: dict[str, Any] = {
        "model": {"path": str(folder), "format": "dummy", "cache_dir": str(folder / "cache")},
        "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 256},
        "cache": {"num_blocks": 1100, "block_size": 4},
        "engine": {"threads": 1, "device": "cpu"},
        "server": {"port": 0, "model_name": "tiny"},
    }
    for name, values in sections.items():
        given[name] = {**given.get(name, {}), **values}
    return RunConfig.model_validate(given)


class Live:
    """A server in a thread of this process."""

    def __init__(self, url: str, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.service, self._loop = url, service, loop
        self.http = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post(path, content=body, **options)
        return self.http.post(path, json=body, **options)

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, without [DONE], which must be the last."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stats(self) -> Any:
        return self.in_loop(self.service.runtime.stats())


@contextmanager
def live_server(config: RunConfig, keys: ApiKeys | None = None) -> Iterator[Live]:
    """Serves while the block runs."""
    ready: threading.Event = threading.Event()
    found: list[Any] = []
    listener: socket.socket = open_socket(config.server)

    async def main() -> None:
        runtime = AsyncRuntime(config)
        service = Service(config, runtime, await runtime.inputs(), config.server.model_name or "x")
        server = make_server(make_app(service, keys or ApiKeys([])))
        found.extend((service, asyncio.get_running_loop(), server))
        ready.set()
        await server.serve(sockets=[listener])
        await runtime.aclose()
        service.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(120)
    service, loop, server = found
    live = Live(url_of(listener), service, loop)
    try:
        yield live
    finally:
        live.http.close()
        server.should_exit = True
        thread.join(60)
        listener.close()
