"""A Runtime without a model: each step gives every running request its next character."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from runtime.data.results import Completion, Delta, Result, Timing
from runtime.errors import RequestError
from runtime.observe.stats import RuntimeStats

REPLY = "héllo wörld"


class FakeRuntime:
    """Answers `REPLY`, cut at max_tokens; a prompt with "fail" ends with an error after a step, one
    with "silent" with EOS."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.tokenizer: Any = SimpleNamespace(has_chat_template=True)
        self.added: list[tuple[Any, dict[str, Any]]] = []
        self.most_at_once = 0
        self.is_closed = False
        self.before_step: Any = lambda runtime: None
        self._live: dict[str, list[Any]] = {}
        self._steps = 0
        self._pending: list[Delta] = []

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def add_request(
        self, prompt: Any = None, *, chat: Any = None, token_ids: Any = None, params: Any, **kw: Any
    ) -> str:
        if prompt == "" or token_ids == []:
            raise RequestError("prompt", "must not be empty")
        name = f"req-{len(self.added)}"
        self.added.append((prompt or chat or token_ids, {**params, **kw}))
        text = REPLY[: params.get("max_tokens", 16)]
        self._live[name] = [prompt, text, 0]
        self.most_at_once = max(self.most_at_once, len(self._live))
        return name

    def has_unfinished(self) -> bool:
        return bool(self._live or self._pending)

    def abort(self, request_id: str) -> None:
        if request_id in self._live:
            self._pending.append(self._end(request_id, "abort", None))

    def step(self) -> list[Delta]:
        self.before_step(self)
        deltas, self._pending = self._pending, []
        self._steps += 1
        for name in list(self._live):
            prompt, text, done = self._live[name]
            if prompt is not None and "fail" in prompt:
                deltas.append(self._end(name, "error", "logits are not finite"))
                continue
            if prompt is not None and "silent" in prompt:
                deltas.append(self._end(name, "stop", None))
                continue
            self._live[name][2] = done + 1
            finished = done + 1 == len(text)
            if finished:
                deltas.append(self._end(name, "length", None, text[done]))
            else:
                deltas.append(Delta(name, 0, text[done], (ord(text[done]),), None, None, None))
        return deltas

    def stats(self) -> RuntimeStats:
        numbers = dict.fromkeys(RuntimeStats.__dataclass_fields__, 0)
        numbers |= {"steps": self._steps, "mixed_steps": 1, "num_blocks": 50, "blocks_used_peak": 7}
        numbers |= {"prompt_tokens": 40, "cached_tokens": 10, "output_tokens": 22}
        return RuntimeStats(**{**numbers, "padding_share": 0.125})

    def _end(self, name: str, reason: str, error: str | None, new: str = "") -> Delta:
        _, text, done = self._live.pop(name)
        text = text[:done]
        timing = Timing(0.001, 0.01, 0.05, (0.002,) * max(0, done - 1))
        ids = tuple(ord(c) for c in text)
        completion = Completion(0, text, ids, reason, None, error, None, 0, timing)
        result = Result(name, None, (1, 2, 3), 2, None, (completion,))
        return Delta(name, 0, new, tuple(ord(c) for c in new), None, reason, result)
