"""Chats with tools: what the model is told, what it may write, and what the client gets."""

import json

import pytest

from runtime.data.results import Completion, Delta, Result, Timing
from tests.serving import live_server, run_config, write_model

PATH = "/v1/chat/completions"
TEMPLATE = (
    "{# calls are written <tool_call> #}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
SWITCH = {
    "type": "function",
    "function": {
        "name": "switch",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "switch"}}
BODY = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [SWITCH],
    "max_tokens": 200,
    "temperature": 0,
    "logit_bias": {str(byte): -100 for byte in b" \n\t\r"},
}


@pytest.fixture(scope="module")
def able(tmp_path_factory):
    """A model whose template shows how tools are called."""
    model = write_model(tmp_path_factory.mktemp("tools"), TEMPLATE)
    with live_server(run_config(model)) as server:
        yield server


def ask(live, **body):
    answer = live.post(PATH, {**BODY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def joined(events):
    """The message that the events of a stream come to, and why it ended."""
    text, calls, reason = "", [], None
    for event in events:
        for choice in event["choices"]:
            text += choice["delta"].get("content", "")
            reason = choice["finish_reason"] or reason
            for call in choice["delta"].get("tool_calls", []):
                if "id" in call:
                    calls.append({**call["function"]})
                else:
                    calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return text, calls, reason


class TestRequired:
    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("llguidance")

    def test_one_function(self, live):
        """Any model can: its output is held to the function's schema."""
        choice = ask(live, tool_choice=NAMED)
        [call] = choice["message"]["tool_calls"]
        assert call["type"] == "function"
        assert call["function"]["name"] == "switch"
        assert json.loads(call["function"]["arguments"])["on"] in (True, False)
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "stop"  # as OpenAI, where the function was named
        events = live.events(PATH, {**BODY, "tool_choice": NAMED})
        assert joined(events) == ("", [call["function"]], "stop")
        assert len(events) > 4

    def test_any_function(self, live):
        body = {"tool_choice": "required", "parallel_tool_calls": False}
        choice = ask(live, **body)
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "switch"
        assert set(json.loads(call["function"]["arguments"])) == {"on"}
        assert choice["finish_reason"] == "tool_calls"
        assert joined(live.events(PATH, {**BODY, **body})) == ("", [call["function"]], "tool_calls")


def scripted(live, monkeypatch, parts):
    """The model writes these parts, whatever it is asked."""

    async def submit(prepared, **_):
        text = "".join(parts)
        timing = Timing(0.0, 0.0, 0.0, ())
        sample = Completion(0, text, (1,), "stop", None, None, None, 0, timing)
        result = Result("r", None, tuple(prepared.token_ids), 0, None, (sample,))
        for part in parts[:-1]:
            yield Delta("r", 0, part, (1,), None, None, None)
        yield Delta("r", 0, parts[-1], (1,), None, "stop", result)

    monkeypatch.setattr(live.service.runtime, "submit", submit)


CALL = '{"name": "switch", "arguments": {"on": true}}'


@pytest.mark.parametrize(
    ("parts", "text", "num_calls"),
    [
        (["I ", "do.\n<tool", f"_call>{CALL}</tool", "_call>"], "I do.", 1),
        ([f"<tool_call>{CALL}</tool_call>", f"<tool_call>{CALL}</tool_call>"], "", 2),
        (["no ", "call"], "no call", 0),
    ],
)
def test_the_model_may_call(able, monkeypatch, parts, text, num_calls):
    scripted(able, monkeypatch, parts)
    calls = [{"name": "switch", "arguments": '{"on": true}'}] * num_calls
    reason = "tool_calls" if num_calls else "stop"
    choice = ask(able)
    found = choice["message"].get("tool_calls", [])
    assert [call["function"] for call in found] == calls
    assert len({call["id"] for call in found}) == num_calls
    assert choice["message"]["content"] == (text or None)
    assert choice["finish_reason"] == reason
    assert joined(able.events(PATH, BODY)) == (text, calls, reason)
    plain = ask(able, tool_choice="none")
    assert plain["message"]["content"] == "".join(parts)


def test_the_template_is_given_tools_and_earlier_calls(able):
    def num_tokens(**body):
        answer = able.post(PATH, {**BODY, "max_tokens": 1, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens"]

    without = num_tokens(tools=None)
    assert num_tokens() - without == len(json.dumps([SWITCH]))
    assert num_tokens(tool_choice="none") == without
    call = {"id": "c", "type": "function", "function": {"name": "switch", "arguments": '{"on": 1}'}}
    said = [*BODY["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert num_tokens(tools=None, messages=said) - without == len('[assistant]{"on": 1}')


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": "x"}, "tools"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages"),
    ],
)
def test_what_cannot_be_asked(able, body, param):
    answer = able.post(PATH, {**BODY, **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_parameters_that_are_no_schema(able):
    pytest.importorskip("llguidance")
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"type": "colour"}}}
    answer = able.post(PATH, {**BODY, "tools": [wrong], "tool_choice": "required"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"


def test_a_model_that_shows_no_way_of_calling(live, model):
    answer = live.post(PATH, BODY)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"
    with live_server(run_config(model, server={"tool_parser": "llama"})) as told:
        assert told.post(PATH, {**BODY, "max_tokens": 1}).status_code == 200
