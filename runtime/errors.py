"""Every error that the runtime raises on purpose, in one hierarchy.

For what a user can fix, the message says what is wrong, where (YAML key, CLI flag, request field)
and what is allowed. `assert` is kept for our own bugs.
"""

from __future__ import annotations


class StepgraphError(Exception):
    """Base of all errors raised on purpose; the CLI prints them without a traceback."""


class ConfigError(StepgraphError):
    """A configuration that cannot be run: unknown key, wrong type, contradictory limits."""


class ModelError(StepgraphError):
    """A model or tokenizer that cannot be loaded: missing, corrupt, unsupported."""


class RequestError(StepgraphError, ValueError):
    """A request that cannot be served; nothing else is affected.

    Attributes:
        field: the name of the offending request field, such as `max_tokens`.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self._message = message

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, str]]:
        """For pickle and copy: an exception is otherwise made again from its message alone."""
        return RequestError, (self.field, self._message)

    def of_item(self, index: int, count: int) -> RequestError:
        """The same, of one item in a list of requests."""
        return RequestError(
            self.field, f"{self._message} (item {index} of the {count} given, from 0)"
        )


class BackendError(StepgraphError):
    """An attention backend or graph mode that cannot do what was asked; lists every candidate's
    reason."""


class StepError(StepgraphError):
    """A step that failed while it ran: its requests ended with an error, the engine goes on."""


class EngineError(StepgraphError):
    """The engine has stopped, by a crash (its cause is attached) or because it was closed: it takes
    no requests, and those that ran have ended with this."""
