"""What stands in a line of the input, and in a line of the output."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from tests.unit.cli.fakes import REPLY
from tests.unit.cli.test_main import ROOT

FIELDS = [
    *("index", "id", "line", "text", "token_ids", "finish_reason", "stop_reason", "error"),
    *("num_preemptions", "queue_s", "ttft_s", "e2e_s", "logprobs"),
    *("num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "prompt_logprobs", "samples"),
]


@pytest.fixture
def stdin(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))

    return give


@pytest.fixture
def through(call, opened, stdin):
    """through(*lines) -> (rows by index, standard error): standard input to standard output."""

    def run(*lines):
        stdin("".join(f"{line}\n" for line in lines))
        args = ("generate", "--model", "x", "--input", "-", "--output", "-", "--no-progress")
        _, out, err = call(*args)
        rows = [json.loads(line) for line in out.splitlines()]
        return {row["index"]: row for row in rows}, err

    return run


def test_every_row_has_the_same_fields_and_its_origin(through):
    rows, err = through(
        '{"id": "a", "prompt": "x", "max_tokens": 2}',
        "",
        '{"id": 7, "prompt": ""}',
        '{"id": "b", "promt": "x"}',
        '{"id": [1], "prompt": "x"}',
        "{broken",
        '{"prompt": "fail"}',
    )
    assert [list(row) for row in rows.values()] == [FIELDS] * 6
    assert [rows[i]["id"] for i in range(6)] == ["a", 7, "b", None, None, None]
    assert [rows[i]["line"] for i in range(6)] == [1, 3, 4, 5, 6, 7]
    assert rows[0]["text"] == REPLY[:2]
    assert rows[0]["error"] is None
    assert rows[0]["samples"] is None
    for index in range(1, 5):
        unknown = {k for k, v in rows[index].items() if v is None}
        assert {"num_prompt_tokens", "num_cached_tokens", "ttft_s", "e2e_s"} <= unknown
        assert rows[index]["finish_reason"] == "error"
        assert (rows[index]["text"], rows[index]["token_ids"]) == ("", [])
    assert rows[5]["num_prompt_tokens"] == 3
    assert "stepgraph: 5 requests failed; their errors are in the output\n" in err


def test_the_rows_of_the_readme_are_such_rows(through):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = json.loads(readme.partition("```json\n")[2].partition("\n")[0])
    assert list(row) == FIELDS
    line = readme.partition("echo '")[2].partition("'")[0]
    assert through(line)[0][0]["id"] == row["id"]


def test_a_prompt_from_a_flag_has_no_line(call, opened):
    _, out, _ = call(
        *("generate", "--model", "x", "--prompt", "a", "--output", "-", "--max-tokens", 1)
    )
    row = json.loads(out)
    assert (row["index"], row["id"], row["line"]) == (0, None, None)


def test_the_name_of_a_request_in_the_run_file(call, opened, run_file):
    path = run_file("model: {path: x}\nrequests: [{id: first, prompt: a}]\n")
    _, out, _ = call("generate", "--config", path, "--output", "-")
    assert json.loads(out)["id"] == "first"


def test_messages_are_a_chat_and_tools_go_with_it(through, opened):
    messages, tools = [{"role": "user", "content": "x"}], [{"name": "f"}]
    rows, _ = through(json.dumps({"messages": messages, "tools": tools, "n": 1}))
    assert rows[0]["error"] is None
    prompt, given = opened[0].added[0]
    assert prompt == messages
    assert given["tools"] == tools


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{}", "must have exactly one of prompt, chat, token_ids, got none"),
        ('{"chat": [], "messages": []}', "chat and messages are the same; give one of them"),
        ('{"prompt": "a", "max_tokens": null}', "max_tokens: must be an integer >= 1, got null"),
        (
            '{"prompt": "a", "sampling": {"top_p": 2}}',
            "sampling.top_p: must be in (0, 1], got 2",
        ),
        ('{"prompt": 1, "id": {}}', "id: must be a string or an integer or null, got a mapping; "),
        ('{"prompt": "a", "tools": []}', "tools: go with chat only, not with prompt"),
        ('{"prompt": "a", "zzz": 1}', "zzz: unknown key; known keys: id, prompt, chat, "),
    ],
)
def test_an_error_names_the_line(through, line, error):
    rows, _ = through('{"prompt": "good"}', line)
    assert rows[1]["error"].startswith(f"<stdin>:2: {error}")
    assert "the configuration" not in rows[1]["error"]


def test_functions_are_no_known_key(through):
    rows, _ = through('{"prompt": "good"}', '{"prompt": "a", "zzz": 1}')
    assert "structured_output" in rows[1]["error"]
    assert "logits_processors" not in rows[1]["error"]


def test_standard_input_is_named(call, opened, stdin):
    stdin("[]\n")
    status, _, err = call("generate", "--model", "x", "--input", "-")
    assert status == 2
    assert "no line of --input <stdin> is a request; the first: <stdin>:1: must be a JSON" in err


def test_standard_output_is_for_rows_alone(call, opened):
    status, out, err = call("generate", "--model", "x", "--prompt", "a", "--output", "-")
    assert status == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == [REPLY]
    assert "tokens/s" in err
    status, _, err = call(
        *("generate", "--model", "x", "--prompt", "a", "--output", "-", "--stream")
    )
    assert (status, "--stream: --output - prints no answers" in err) == (2, True)
