"""What cannot be served: the status, the field, and a server that goes on."""

import json

import pytest

from tests.serving import live_server, run_config, write_model

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
CHAT = [{"role": "user", "content": "x"}]


def refused(live, path, body, status=400):
    answer = live.post(path, body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", v) for v in (-1, "1", [], True, 1e999)),
        *(("top_p", v) for v in (0, 1.1, "x")),
        *(("n", v) for v in (0, -1, 1.5, "2", 10**6)),
        *(("max_tokens", v) for v in (-1, "5", 1.5, 2**40)),
        *(("seed", v) for v in (-1, 0.5, 2**64)),
        *(("stop", v) for v in (5, [1], [""], {})),
        *(("presence_penalty", v) for v in (-3, 3, "x")),
        *(("frequency_penalty", v) for v in (-3, 3)),
        *(("repetition_penalty", v) for v in (0, "x")),
        *(("logit_bias", v) for v in ({"x": 1}, {"5": 200}, {"100000": 1}, [], {"-1": 1})),
        *(("top_k", v) for v in (-2, 0.5)),
        *(("min_p", v) for v in (-0.1, 2)),
        *(("min_tokens", v) for v in (-1, 10**9)),
        *(("stop_token_ids", v) for v in ([-1], ["x"], 5, [10**6])),
        *(("allowed_token_ids", v) for v in ([], [10**6])),
        *(("bad_words", v) for v in ([""], "x", [1])),
        *(("ignore_eos", v) for v in (1, "yes")),
        *(("stream", v) for v in (1, "true")),
        *(("stream_options", v) for v in (True, {"include_usage": True})),
        *(("priority", v) for v in ("high", 0.5)),
        *(("cache_salt", v) for v in (5, {})),
        *(("structured_outputs", v) for v in ({}, {"regex": "("}, {"colour": 1}, {"json": 5})),
        *(("response_format", v) for v in ("json", {"type": "xml"}, {"type": "json_schema"})),
        ("colour", "red"),
    ],
)
def test_a_field_out_of_range_or_of_the_wrong_type(live, path, field, value):
    if field in ("structured_outputs", "response_format"):
        pytest.importorskip("llguidance")
    asked = {"prompt": "x"} if path == COMPLETIONS else {"messages": CHAT}
    text = json.dumps({**asked, field: value})
    error = refused(live, path, text.encode())
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(field)
    assert error["message"].startswith(error["param"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"suffix": "x"}, "suffix"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"echo": True, "stream": True, "logprobs": 1}, "echo"),
        (CHATS, {"top_logprobs": 5}, "top_logprobs"),
        (CHATS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHATS, {"logprobs": 5}, "logprobs"),
        (CHATS, {"tools": [{"type": "function"}]}, "tools[0].function"),
        (CHATS, {"modalities": ["audio"]}, "modalities"),
        (CHATS, {"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        (CHATS, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHATS, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (CHATS, {"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ],
)
def test_what_only_one_of_them_takes(live, path, body, param):
    asked = {"prompt": "x"} if path == COMPLETIONS else {"messages": CHAT}
    assert refused(live, path, {**asked, **body})["param"] == param


@pytest.mark.case("SV01")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["x", ""], 5, None, {}, [1.5], [-1], [300]])
def test_an_empty_or_wrong_prompt(live, prompt, stream):
    assert refused(live, COMPLETIONS, {"prompt": prompt, "stream": stream})["param"] == "prompt"


@pytest.mark.case("SV01")
@pytest.mark.parametrize(
    "messages",
    [
        [],
        "x",
        None,
        [5],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ],
)
def test_empty_or_wrong_messages(live, messages):
    assert refused(live, CHATS, {"messages": messages})["param"].startswith("messages")


@pytest.mark.case("SV03")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_a_prompt_that_is_too_long_tells_both_numbers(live, path, stream):
    asked = {"prompt": "x" * 5000}
    if path == CHATS:
        asked = {"messages": [{"role": "user", "content": "x" * 5000}]}
    error = refused(live, path, {**asked, "stream": stream})
    assert error["param"] == ("prompt" if path == COMPLETIONS else "messages")
    assert "5000 tokens" in error["message"] or "5019 tokens" in error["message"]
    assert "4096" in error["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, "/tokenize", "/detokenize"])
def test_an_unknown_model(live, path):
    asked = {"prompt": "x"} if path in (COMPLETIONS, "/tokenize") else {"messages": CHAT}
    asked = {"tokens": [1]} if path == "/detokenize" else asked
    error = refused(live, path, {**asked, "model": "gpt-5"}, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "tiny" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt":' * 10_000,
        b"\x00",
    ],
)
def test_what_is_no_json_object(live, body):
    error = refused(live, COMPLETIONS, body)
    assert error["message"]


def test_a_body_that_is_too_large(model):
    with live_server(run_config(model, server={"max_body": "1KiB"})) as live:
        refused(live, COMPLETIONS, {"prompt": "x" * 2000}, 413)
        parts = iter([b'{"prompt": "', *[b"x" * 500] * 4, b'"}'])  # its length is not told before
        answer = live.http.post(COMPLETIONS, content=parts)
        assert answer.status_code == 413
        assert live.post(COMPLETIONS, {"prompt": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", COMPLETIONS, 405),
        ("POST", "/health", 405),
        ("GET", "/v2", 404),
        ("GET", "/v1/models/other", 404),
    ],
)
def test_paths_and_methods(live, method, path, status):
    answer = live.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.case("SV07")
def test_a_model_without_a_chat_template(tmp_path):
    model = write_model(tmp_path / "model", chat_template=None)
    with live_server(run_config(model)) as live:
        error = refused(live, CHATS, {"messages": CHAT})
        assert error["param"] == "messages"
        assert "no chat template" in error["message"]
        assert live.post(COMPLETIONS, {"prompt": "x"}).status_code == 200


@pytest.mark.case("SV03")
def test_the_others_are_unharmed(live):
    """Bad requests between good ones: these answer as they would alone."""
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 8}
    alone = live.post(COMPLETIONS, body).json()["choices"]
    for bad in ({"prompt": ""}, {"prompt": "x" * 5000}, {"prompt": "x", "n": 0}):
        refused(live, COMPLETIONS, bad)
        assert live.post(COMPLETIONS, body).json()["choices"] == alone
    assert live.http.get("/health").status_code == 200


def test_a_template_that_raises_harms_nobody(tmp_path):
    model = write_model(tmp_path / "model", "{{ raise_exception('roles must alternate') }}")
    with live_server(run_config(model)) as live:
        error = refused(live, CHATS, {"messages": CHAT})
        assert "roles must alternate" in error["message"]
        assert live.http.get("/health").status_code == 200
