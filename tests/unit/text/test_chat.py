import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from runtime.errors import RequestError
from runtime.text import Tokenizer, TokenizerSettings
from tests.unit.text import vocabularies as v

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city, such as Žilina <now>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Žilina?  "},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "weather", "arguments": {}}]},
    {"role": "tool", "content": "12 °C", "name": "weather"},
    {"role": "assistant", "content": "Cold.", "reasoning": "12 is cold"},
    {"role": "user", "content": "Thanks <tool>"},
]
TEMPLATE = """\
{%- set ns = namespace(turns=0) %}
{{- bos_token }}
{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- tool | tojson(indent=2) if loop.first }}
    {%- endfor %}
    {{- '</tools>' }}
{%- endif %}
{%- for message in messages %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('no such role: ' + message.role) }}
    {%- endif %}
    <|{{ message.role }}|>
    {% if message.role == 'assistant' %}
    {% generation %}
{{ message.content | trim if message.content is defined else message.tool_calls | tojson }}
{{- eos_token }}
    {% endgeneration %}
    {{- message.reasoning_content | default('') }}
    {% else %}
{{ message['content'] }}
    {% endif %}
{%- endfor %}
{{- ns.turns }}{{ (dict(a=1) | tojson) if documents is none }}
{%- if enable_thinking is defined and enable_thinking %}<think>{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""


def tokenizer_with(template):
    backend = v.byte_level_backend()
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(backend, TokenizerSettings(special, template))


@pytest.fixture(scope="module")
def reference():
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=v.byte_level_backend(), bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}])
@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize(
    "template",
    [TEMPLATE, {"default": "{{ messages[0].content }}", "tool_use": TEMPLATE}],
    ids=["one", "named"],
)
def test_equals_transformers(reference, template, tools, options, prompted):
    messages = [{"role": "skip", "content": "x"}, *TALK]
    reference.chat_template = template
    options = {"add_generation_prompt": prompted, **options}
    tokenizer = tokenizer_with(template)
    assert tokenizer.render_chat(messages, tools, **options) == reference.apply_chat_template(
        messages, tools, tokenize=False, **options
    )
    assert tokenizer.apply_chat_template(
        messages, tools, **options
    ) == reference.apply_chat_template(messages, tools, return_dict=False, **options)


def test_equals_transformers_for_the_real_model(smollm2, reference_smollm2):
    chats = [[{"role": "user", "content": "Hi"}], TALK[:2], [*TALK[:2], *TALK[4:]]]
    for messages in chats:
        for prompted in (True, False):
            assert smollm2.apply_chat_template(
                messages, add_generation_prompt=prompted
            ) == reference_smollm2.apply_chat_template(
                messages, add_generation_prompt=prompted, return_dict=False
            )


def test_a_function_is_a_tool_by_its_docstring(reference):
    def weather(city: str, days: int = 1) -> str:
        """The weather.

        Args:
            city: where
            days: how long
        """

    reference.chat_template = TEMPLATE
    assert tokenizer_with(TEMPLATE).render_chat(TALK, [weather]) == reference.apply_chat_template(
        TALK, [weather], tokenize=False, add_generation_prompt=True
    )
    with pytest.raises(RequestError, match=r"^tools: tool 0"):
        tokenizer_with(TEMPLATE).render_chat(TALK, [lambda city: city])


def test_bos_is_not_doubled():
    tokenizer = tokenizer_with("{{ bos_token }}{{ messages[0].content }}")
    assert tokenizer.encode("hi")[0] == tokenizer.bos_token_id
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert ids == tokenizer.encode("hi")
    assert ids.count(tokenizer.bos_token_id) == 1


def test_no_template():
    tokenizer = tokenizer_with(None)
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match=r"^chat: this model has no chat template; give"):
        tokenizer.render_chat(TALK)
    with pytest.raises(RequestError, match=r"none of the model's chat templates is the default"):
        tokenizer_with({"rag": "x"}).render_chat(TALK)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (TEMPLATE, "no such role: robot"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "must not start with _"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(99999999) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_that_refuses_is_a_request_error(template, says):
    with pytest.raises(RequestError, match=f"^chat: the model's chat template says: .*{says}"):
        tokenizer_with(template).render_chat([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("hello", "must be a list of messages, got str"),
        ({"role": "user", "content": "x"}, "must be a list of messages, got dict"),
        (None, "must be a list of messages, got NoneType"),
        (iter(()), "must be a list of messages"),
        ([], "must hold at least one message"),
        (["hello"], "message 0 must be a mapping"),
        ([{"content": "x"}], "message 0 needs a role"),
        ([{"role": 3, "content": "x"}], "message 0 needs a role"),
        ([{"role": "user"}], "message 0 needs content"),
        ([{"role": "user", "content": None}], "message 0 needs content"),
        ([*TALK, {"role": "user", "content": 5}], "message 6: content must be text or a list"),
        ([{"role": "user", "content": [object()]}], "message 0 holds a object"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "message 0: a part of its content must be .* type text and a text; .* got 'image_url'",
        ),
        ([{"role": "user", "content": ["x"]}], "message 0: a part of its content must be"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0: a part of its content"),
    ],
)
def test_malformed_messages(messages, says):
    with pytest.raises(RequestError, match=f"^chat: {says}"):
        tokenizer_with(TEMPLATE).render_chat(messages)


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    tokenizer = tokenizer_with("{{ messages[0].content }}")
    assert tokenizer.render_chat([{"role": "user", "content": parts}]) == "a\nb"
    assert tokenizer.render_chat([{"role": "user", "content": parts[:1]}]) == "a"


@pytest.mark.parametrize("tools", ["weather", {"name": "weather"}, [3], [{"x": object()}]])
def test_malformed_tools(tools):
    with pytest.raises(RequestError, match=r"^tools: "):
        tokenizer_with(TEMPLATE).render_chat(TALK, tools)


def test_an_option_is_not_taken_for_a_variable():
    with pytest.raises(RequestError, match=r"^chat: continue_final_message cannot be given"):
        tokenizer_with(TEMPLATE).render_chat(TALK, continue_final_message=True)


def test_a_variable_cannot_replace_what_the_call_gives():
    template = tokenizer_with(TEMPLATE)._chat
    with pytest.raises(RequestError, match=r"^chat: messages cannot be given"):
        template.render(TALK, None, True, {"messages": []})


def test_messages_are_copied_to_plain_types():
    @dataclass
    class Message:
        role: str
        content: str

        def model_dump(self):
            return {"role": self.role, "content": self.content}

    class Loud(str):
        def danger(self):
            raise AssertionError

    tokenizer = tokenizer_with("{{ messages[0].content.danger is defined }}")
    assert tokenizer.render_chat([{"role": "user", "content": Loud("x")}]) == "False"
    tokenizer = tokenizer_with("{{ messages | tojson }}")
    rendered = tokenizer.render_chat([Message("user", "é")])
    assert json.loads(rendered) == [{"role": "user", "content": "é"}]
    with pytest.raises(RequestError, match="holds a SimpleNamespace"):
        tokenizer.render_chat([SimpleNamespace(role="user", content="x")])
