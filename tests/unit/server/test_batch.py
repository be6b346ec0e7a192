"""`run-batch`: each request is answered once, whatever happens."""

import asyncio
import json

import pytest

from runtime.errors import ConfigError, EngineError
from runtime.server import batch
from runtime.server.batch_files import Line, Output, read_input, read_text
from tests.serving import run_config

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
URL = "/v1/chat/completions"


def line(name, body=None, url=URL, method="POST"):
    return Line(name, method, url, CHAT if body is None else body)


def rows_of(config, lines):
    rows = []
    failed = asyncio.run(batch.run_batch(config, lines, rows.append, asyncio.Event(), "tiny"))
    assert failed == sum(row["response"]["status_code"] != 200 for row in rows)
    return {row["custom_id"]: row for row in rows}


def test_good_and_bad_requests(model):
    lines = [
        line("chat"),
        line("text", {"prompt": "x", "max_tokens": 3, "n": 2}, "/v1/completions"),
        line("field", {**CHAT, "n": 0}),
        line("stream", {**CHAT, "stream": True}),
        line("url", url="/v1/embeddings"),
        line("method", method="GET"),
        line("body", 5),
        line("model", {**CHAT, "model": "other"}),
    ]
    rows = rows_of(run_config(model), lines)
    assert len(rows) == len(lines)
    status = {name: row["response"]["status_code"] for name, row in rows.items()}
    assert status == {**dict.fromkeys(status, 400), "chat": 200, "text": 200, "model": 404}
    body = rows["chat"]["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["usage"]["completion_tokens"] == 3
    assert len(rows["text"]["response"]["body"]["choices"]) == 2
    assert rows["field"]["response"]["body"]["error"]["param"] == "n"
    assert rows["stream"]["response"]["body"]["error"]["param"] == "stream"


def test_what_was_stopped_is_left_out(model):
    long = {**CHAT, "max_tokens": 4000, "ignore_eos": True}
    rows = []

    async def main():
        stopped = asyncio.Event()

        def write(row):
            rows.append(row["custom_id"])
            stopped.set()

        lines = [line("short"), *(line(f"long-{i}", long) for i in range(20))]
        return await batch.run_batch(run_config(model), lines, write, stopped, "tiny")

    assert asyncio.run(main()) == 0
    assert rows == ["short"]


def test_an_engine_that_dies_ends_the_batch(model, monkeypatch):
    async def die(*_):
        raise EngineError("the engine has crashed")

    monkeypatch.setattr(batch, "answer_whole", die)
    with pytest.raises(EngineError, match="crashed"):
        rows_of(run_config(model), [line("a"), line("b")])


class TestFiles:
    def test_a_row_that_a_crash_cut_off_is_written_again(self, tmp_path):
        path = tmp_path / "out.jsonl"
        path.write_bytes(b'{"custom_id":"a"}\n{"id":"batch-b","custom_id":"b","resp')
        output = Output(str(path))
        assert output.done == {"a"}
        output.write({"custom_id": "b"})
        output.close()
        assert path.read_bytes() == b'{"custom_id":"a"}\n{"custom_id":"b"}\n'
        again = Output(str(path))
        assert again.done == {"a", "b"}
        again.close()

    @pytest.mark.parametrize(
        "text", ["my notes\n", "my notes", '{"custom_id":"a"}\nnotes', "[1]\n"]
    )
    def test_another_file_is_left_alone(self, tmp_path, text):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(ConfigError, match="is no answer of a batch"):
            Output(str(path))
        assert path.read_text() == text

    def test_a_file_that_cannot_be_written(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be written"):
            Output(str(tmp_path / "gone" / "out.jsonl"))

    def test_lines_that_nobody_could_tell_apart(self):
        text = '\n{"custom_id": "a"}\n[]\n{\n{"custom_id": ""}\n{"custom_id": "a"}\n'
        with pytest.raises(ConfigError) as caught:
            read_input(text, "in.jsonl")
        assert str(caught.value) == (
            "in.jsonl: line 3 is no JSON object; line 4 is no JSON object; "
            "line 5 has no custom_id; line 6 repeats the custom_id 'a'"
        )

    def test_lines(self):
        text = json.dumps({"custom_id": "a", "url": URL, "body": {}})
        assert read_input(text, "in.jsonl") == [Line("a", "POST", URL, {})]
        assert read_input("", "in.jsonl") == []

    def test_an_input_that_cannot_be_read(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            read_text(str(tmp_path / "gone"))
        (tmp_path / "other").write_bytes(b"\xff")
        with pytest.raises(ConfigError, match="not UTF-8"):
            read_text(str(tmp_path / "other"))
