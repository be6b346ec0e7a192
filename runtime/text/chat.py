"""ChatTemplate: messages to one text, by the Jinja template that the model came with.

Templates are written for transformers' environment, so this one offers the same: the sandbox, block
trimming, loop controls, `tojson`, `raise_exception`, `strftime_now`, and `{% generation %}` blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from runtime.errors import RequestError

if TYPE_CHECKING:
    import jinja2

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_NOT_VARIABLES = (
    "messages",
    "tools",
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "return_dict",
    "tokenize",
)
"""Given otherwise, or options of transformers' that would have no effect here."""


class ChatTemplate:
    """A model's chat template, or several by name.

    Args:
        source: the template, or templates by name (`default`, `tool_use`), or None.
        special_tokens: name to text; the template sees them as variables.
    """

    def __init__(
        self, source: str | Mapping[str, str] | None, special_tokens: Mapping[str, str]
    ) -> None:
        self._source = source
        self._special_tokens = special_tokens

    @property
    def is_given(self) -> bool:
        return bool(self._source)

    @property
    def source_for_tools(self) -> str | None:
        """The template that a chat with tools is given; None where there is none."""
        if isinstance(self._source, Mapping):
            return self._source.get("tool_use", self._source.get("default"))
        return self._source or None

    def render(
        self,
        messages: Any,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The text of a chat; see Tokenizer.render_chat.

        Raises:
            RequestError: no template, malformed messages or tools, or a template that refuses them.
        """
        source = self._choose(with_tools=tools is not None)
        given = {
            "messages": _check_messages(messages),
            "tools": _check_tools(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        _check_variables(variables)
        variables = {name: _plain(value, name) for name, value in variables.items()}
        try:
            template = _compile(source)
            return template.render(
                {"documents": None, **self._special_tokens, **variables, **given}
            )
        except Exception as error:  # a template is a program: it may raise anything
            detail = str(error) or type(error).__name__
            raise RequestError("chat", f"the model's chat template says: {detail}") from error

    def _choose(self, with_tools: bool) -> str:
        if not self._source:
            raise RequestError(
                "chat",
                "this model has no chat template; give a prompt or token_ids, or set "
                "model.tokenizer to a folder whose tokenizer has one",
            )
        if isinstance(self._source, str):
            return self._source
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._source:
                return self._source[name]
        raise RequestError(
            "chat", f"none of the model's chat templates is the default: {sorted(self._source)}"
        )


def _check_messages(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(
            "chat", f"must be a list of messages, got {type(messages).__name__}: {messages!r:.60}"
        )
    if not messages:
        raise RequestError("chat", "must hold at least one message")
    return [_check_message(message, f"message {i}") for i, message in enumerate(messages)]


def _check_message(message: Any, where: str) -> Any:
    message = _plain(message, where)
    if not isinstance(message, dict):
        raise RequestError("chat", f"{where} must be a mapping with role and content: {message!r}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise RequestError("chat", f"{where} needs a role (text), got {role!r}")
    if content is None and not message.get("tool_calls"):
        raise RequestError("chat", f"{where} needs content (or tool_calls), it has neither")
    if content is not None and not isinstance(content, (str, list)):
        raise RequestError("chat", f"{where}: content must be text or a list, got {content!r}")
    if isinstance(content, list):
        message["content"] = "\n".join(_text_of(part, where) for part in content)
    message = {name: value for name, value in message.items() if value is not None}
    reasoning = next((message[name] for name in _REASONING_NAMES if name in message), None)
    if reasoning is not None:  # templates read it under one of two names
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _text_of(part: Any, where: str) -> str:
    """A part of a content list: templates of text models print such a list as it stands."""
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else part
    raise RequestError(
        "chat",
        f"{where}: a part of its content must be a mapping with type text and a text; this runtime "
        f"serves text alone, got {kind!r:.60}",
    )


def _check_tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise RequestError("tools", f"must be a list, got {type(tools).__name__}")
    return [_check_tool(tool, f"tool {i}") for i, tool in enumerate(tools)]


def _check_tool(tool: Any, where: str) -> Any:
    if callable(tool) and not isinstance(tool, type):
        from transformers.utils.chat_template_utils import (
            get_json_schema,
        )  # slow to import, seldom needed

        try:
            tool = get_json_schema(tool)
        except Exception as error:
            raise RequestError("tools", f"{where}: {error}") from error
    tool = _plain(tool, where, field="tools")
    if not isinstance(tool, dict):
        raise RequestError("tools", f"{where} must be a JSON schema or a function, got {tool!r}")
    return tool


def _check_variables(variables: Mapping[str, Any]) -> None:
    for name in variables:
        if name in _NOT_VARIABLES:
            raise RequestError("chat", f"{name} cannot be given as a template variable")


def _plain(value: Any, where: str, field: str = "chat") -> Any:
    """A copy out of plain JSON types: a template must not reach the methods of other objects."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(k, where, field): _plain(v, where, field) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where, field) for item in value]
    if callable(getattr(value, "model_dump", None)):  # a pydantic model
        return _plain(value.model_dump(), where, field)
    raise RequestError(field, f"{where} holds a {type(value).__name__}; only JSON values are taken")


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what the assistant said, for training; here its body is kept."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(jinja2.utils.Namespace):
        """Templates are not trusted: names that reach into Python's objects are refused."""

        def __init__(self, **values: Any) -> None:
            super().__init__()
            for name, value in values.items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(
                    f"namespace names must not start with _: {name}"
                )
            super().__setitem__(name, value)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    environment.globals.update(dict=_dict, namespace=Namespace)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
