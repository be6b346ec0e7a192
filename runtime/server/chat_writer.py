"""How answers of chats are written, with the calls of tools that are found in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runtime.data.results import Completion, Delta, Result
from runtime.server.intake import Asked
from runtime.server.logprobs import TokenTexts, chat_logprobs
from runtime.server.tool_parsers import Arguments, Call, Piece, ToolParser
from runtime.server.tools import ToolUse
from runtime.server.writers import head_of


class ChatWriter:
    """Of /v1/chat/completions."""

    def __init__(self, name: str, model: str, asked: Asked, texts: TokenTexts) -> None:
        self._head = head_of(f"chatcmpl-{name}", model)
        self._asked, self._texts = asked, texts
        use = asked.tool_use
        self._calls = [_Calls(use) for _ in range(asked.num_choices)] if use else []

    def head(self, *, is_chunk: bool) -> dict[str, Any]:
        kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {**self._head, "object": kind}

    def openings(self) -> Iterator[dict[str, Any]]:
        for number in range(self._asked.num_choices):
            said = {"role": "assistant", "content": ""}
            yield {"index": number, "delta": said, "logprobs": None, "finish_reason": None}

    def choice(self, number: int, result: Result, sample: Completion) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": sample.text, "refusal": None}
        reason: str | None = sample.finish_reason
        if self._calls:
            calls = self._calls[number]
            message.update(calls.whole(sample.text))
            reason = calls.reason(reason)
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(sample.logprobs),
            "finish_reason": reason,
        }

    def delta(self, number: int, delta: Delta) -> dict[str, Any] | None:
        logprobs = self._logprobs(delta.logprobs) if delta.logprobs else None
        said: dict[str, Any] = {"content": delta.text} if delta.text else {}
        reason = delta.finish_reason
        if self._calls:
            calls = self._calls[number]
            said = calls.more(delta.text, is_last=reason is not None)
            reason = calls.reason(reason)
        if not said and logprobs is None and reason is None:
            return None
        return {"index": number, "delta": said, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, positions: Any) -> dict[str, Any] | None:
        if self._asked.num_logprobs is None:
            return None
        return chat_logprobs(positions or (), self._asked.num_logprobs, self._texts)


class _Calls:
    """The calls of one answer."""

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._parser: ToolParser = use.new_parser()
        self._num_calls = 0

    def whole(self, text: str) -> dict[str, Any]:
        """Fields of the message of a whole answer."""
        said = self.more(text, is_last=True)
        calls = [
            {key: value for key, value in call.items() if key != "index"}
            for call in said.get("tool_calls", [])
        ]
        content = said.get("content")
        return {"content": content, "tool_calls": calls} if calls else {"content": content or ""}

    def more(self, text: str, *, is_last: bool) -> dict[str, Any]:
        """Fields of a delta."""
        pieces = self._parser.push(text)
        if is_last:
            pieces = [*pieces, *self._parser.finish()]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = self._written(pieces)
        said: dict[str, Any] = {"content": content} if content else {}
        return {**said, "tool_calls": calls} if calls else said

    def reason(self, reason: str | None) -> str | None:
        """A call is why the answer stopped, but where it had to be of one function: as OpenAI."""
        is_call = self._num_calls and not isinstance(self._parser, Arguments)
        return "tool_calls" if reason == "stop" and is_call else reason

    def _written(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        calls = [piece for piece in pieces if isinstance(piece, Call)]
        if not isinstance(self._parser, Arguments):
            return [self._new(call) for call in calls]
        if not calls:
            return []
        arguments = "".join(call.arguments for call in calls)
        if self._num_calls:
            return [{"index": 0, "function": {"arguments": arguments}}]
        return [self._new(Call(self._parser.name, arguments))]

    def _new(self, call: Call) -> dict[str, Any]:
        self._num_calls += 1
        return {
            "index": self._num_calls - 1,
            "id": self._use.new_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
