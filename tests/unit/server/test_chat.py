"""/v1/chat/completions over a tiny model."""

import json

import pytest

from tests.serving import live_server, run_config

PATH = "/v1/chat/completions"
CHAT = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "messages": CHAT}


def chat(live, **body):
    answer = live.post(PATH, {**GREEDY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_whole_answer(live):
    answer = chat(live, model="tiny")
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    rendered = "[user] hello\n[assistant]"
    plain = live.post("/v1/completions", {**GREEDY, "prompt": rendered, "messages": None})
    assert plain.status_code == 400  # messages are no field of a completion
    body = {k: v for k, v in GREEDY.items() if k != "messages"}
    plain = live.post("/v1/completions", {**body, "prompt": rendered}).json()
    assert choice["message"]["content"] == plain["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == len(rendered)


def test_a_stream_opens_with_the_role(live):
    whole = chat(live, n=2, temperature=1, seed=2)
    events = live.events(PATH, {**GREEDY, "n": 2, "temperature": 1, "seed": 2})
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    assert [e["choices"][0]["delta"] for e in events[:2]] == [
        {"role": "assistant", "content": ""}
    ] * 2
    found = ["", ""]
    for event in events[2:]:
        [choice] = event["choices"]
        found[choice["index"]] += choice["delta"].get("content", "")
    assert found == [c["message"]["content"] for c in whole["choices"]]


def test_the_template_is_given_what_the_client_says(live):
    prompt_tokens = chat(live)["usage"]["prompt_tokens"]
    named = chat(live, chat_template_kwargs={"name": "bot"})["usage"]["prompt_tokens"]
    assert named == prompt_tokens - len("assistant") + len("bot")
    bare = chat(live, add_generation_prompt=False)["usage"]["prompt_tokens"]
    assert bare == prompt_tokens - len("[assistant]")
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert chat(live, messages=parts)["usage"]["prompt_tokens"] == prompt_tokens


def test_logprobs(live):
    [choice] = chat(live, logprobs=True, top_logprobs=3)["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 8
    for entry in content:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]  # greedy
        assert len(entry["top_logprobs"]) == 3
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
    [bare] = chat(live, logprobs=True)["choices"]
    assert [e["top_logprobs"] for e in bare["logprobs"]["content"]] == [[]] * 8
    assert chat(live)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_length_under_both_names(live, name):
    body = {k: v for k, v in GREEDY.items() if k != "max_tokens"}
    answer = live.post(PATH, {**body, name: 3}).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_without_a_length_an_answer_fills_the_model(model):
    short = {"max_model_len": 60}
    body = {k: v for k, v in GREEDY.items() if k != "max_tokens"}
    with live_server(run_config(model, model=short)) as live:
        usage = live.post(PATH, body).json()["usage"]
    assert usage["total_tokens"] == 60
    with live_server(run_config(model, sampling={"max_tokens": 5})) as live:
        assert live.post(PATH, body).json()["usage"]["completion_tokens"] == 5


def test_json_mode(live):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    fields = {"ignore_eos": False, "max_tokens": 300, "logit_bias": {"32": -100, "10": -100}}
    answer = chat(live, response_format=form, **fields)
    assert json.loads(answer["choices"][0]["message"]["content"])["on"] in (True, False)
    text = chat(live, response_format={"type": "json_object"}, max_tokens=2)
    assert text["choices"][0]["message"]["content"].strip()[0] == "{"
    assert chat(live, response_format={"type": "text"})["choices"] == chat(live)["choices"]
