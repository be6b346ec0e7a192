"""Calls of tools in what models write, in whatever parts it comes."""

import json

import pytest

from runtime.server.tool_parsers import PARSERS, Call, calls_of, parser_of_template

WEATHER = Call("weather", '{"city": "Paris"}')
TIME = Call("time", "{}")
ONE = '{"name": "weather", "arguments": {"city": "Paris"}}'
LLAMA = '{"name": "weather", "parameters": {"city": "Paris"}}'


def read(name, text, size):
    """(text, calls) of an answer that comes in parts of `size` characters."""
    parser = PARSERS[name]()
    pieces = []
    for start in range(0, len(text), size):
        pieces += parser.push(text[start : start + size])
    pieces += parser.finish()
    shown = "".join(piece for piece in pieces if isinstance(piece, str))
    return shown, [piece for piece in pieces if isinstance(piece, Call)]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("name", "text", "shown", "calls"),
    [
        ("hermes", "just text", "just text", []),
        ("hermes", "a < b <tool", "a < b <tool", []),
        ("hermes", f"<tool_call>\n{ONE}\n</tool_call>", "", [WEATHER]),
        ("hermes", f"I look.\n<tool_call>{ONE}</tool_call>", "I look.", [WEATHER]),
        (
            "hermes",
            f'<tool_call>{ONE}</tool_call>\n<tool_call>{{"name": "time"}}</tool_call>',
            "",
            [WEATHER, TIME],
        ),
        ("hermes", f"<tool_call>{ONE}", "", [WEATHER]),  # its end never came
        ("hermes", "<tool_call>{broken</tool_call>!", "<tool_call>{broken!", []),
        ("hermes", " spaces  inside\n\nstay ", " spaces  inside\n\nstay ", []),
        ("llama", "just text", "just text", []),
        ("llama", LLAMA, "", [WEATHER]),
        ("llama", f"<|python_tag|>{LLAMA}; {LLAMA}", "", [WEATHER, WEATHER]),
        ("llama", '{"answer": 42}', '{"answer": 42}', []),
        ("llama", "{ not json", "{ not json", []),
        ("llama", "x" + LLAMA, "x" + LLAMA, []),
        ("mistral", "just text", "just text", []),
        ("mistral", f"[TOOL_CALLS] [{ONE}, {ONE}]", "", [WEATHER, WEATHER]),
        ("mistral", "[TOOL_CALLS] [broken", "[TOOL_CALLS] [broken", []),
        ("mistral", "[1] is a source", "[1] is a source", []),
    ],
)
def test_an_answer_in_parts(name, text, shown, calls, size):
    assert read(name, text, size) == (shown, calls)


def test_text_is_shown_as_soon_as_it_can_be_no_call():
    parser = PARSERS["hermes"]()
    assert parser.push("Hello") == ["Hello"]
    assert parser.push(" <to") == []
    assert parser.push("p") == [" <top"]
    parser = PARSERS["llama"]()
    assert parser.push("Hello") == ["Hello"]
    assert parser.push(" {") == [" {"]


@pytest.mark.parametrize(
    "text",
    ["5", '"x"', "[]x", '{"name": 5}', '{"arguments": {}}', "[" * 100_000, '[{"name": "a"}, 5]'],
)
def test_what_is_no_call(text):
    assert calls_of(text) == []


def test_arguments_stay_as_they_were_written():
    [call] = calls_of('{"name": "f", "arguments": "{\\"a\\": 1}"}')
    assert call.arguments == '{"a": 1}'
    [call] = calls_of('{"name": "f", "arguments": {"a": "é"}}')
    assert json.loads(call.arguments) == {"a": "é"}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... return <tool_call></tool_call> XML tags ...", "hermes"),
        ("{{- '[TOOL_CALLS] [' }}", "mistral"),
        ("""'Respond in the format {"name": function name, "parameters": dictionary}.'""", "llama"),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_parser(template, name):
    assert parser_of_template(template) == name
