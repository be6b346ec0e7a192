"""A conversation: what was said, and the next answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runtime.errors import EngineError
from runtime.front.api import Runtime


class Conversation:
    """Messages between a user and the model.

    Args:
        system: what the model is told before all else.
        max_tokens: of an answer; None is what the model's length leaves.
    """

    def __init__(self, runtime: Runtime, system: str | None, max_tokens: int | None) -> None:
        self._runtime = runtime
        self._max_tokens = max_tokens
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._start)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._start)

    def answer(self, text: str, is_stopped: Callable[[], bool]) -> Iterator[str]:
        """Say something and yield the answer as it comes.

        An answer that is stopped is remembered as far as it came; one that fails leaves the
        conversation as it was.

        Raises:
            RequestError: the conversation has become too long, or the template refuses it.
            EngineError: the answer failed.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        _, ids = self._runtime.inputs.encode(None, asked, None, None)
        self._runtime.inputs.check_ids(ids)
        max_tokens = self._max_tokens or self._runtime.max_model_len - len(ids)
        parts = []
        deltas = self._runtime.stream(asked, {"max_tokens": max_tokens})
        for delta in deltas:
            parts.append(delta.text)
            yield delta.text
            if delta.finished is not None and delta.finished.error:
                raise EngineError(delta.finished.error)
            if is_stopped():
                break
        deltas.close()
        self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]
