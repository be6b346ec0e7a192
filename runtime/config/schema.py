"""The configuration as a whole: the runtime's sections, and a run file's work beside them.

Settled at the door, never written back.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from runtime.config.describe import as_yaml
from runtime.config.limits import limit_problems
from runtime.config.observing import ObserveConfig
from runtime.config.problems import Problem, ProblemsError
from runtime.config.section import Section
from runtime.config.sections import (
    AttentionConfig,
    CacheConfig,
    EngineConfig,
    GraphsConfig,
    ModelConfig,
    SchedulerConfig,
)
from runtime.config.server import ServerConfig
from runtime.data.params import SamplingParams
from runtime.errors import RequestError


def _sampling_problems(values: dict[str, Any]) -> list[Problem]:
    try:
        SamplingParams.from_dict(values)
    except RequestError as error:
        message = as_yaml(str(error).removeprefix(f"{error.field}: "))
        return [Problem((error.field,), message)]
    except TypeError as error:
        return [Problem((), str(error))]
    return []


def _check_sampling(values: dict[str, Any]) -> dict[str, Any]:
    found = _sampling_problems(values)
    if found:
        raise ProblemsError(found)
    return values


Sampling = Annotated[dict[str, Any], AfterValidator(_check_sampling)]


class RuntimeConfig(Section):
    """Everything that a Runtime needs; `Runtime(RuntimeConfig(model=ModelConfig(path=...)))`."""

    model: ModelConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    cache: CacheConfig = CacheConfig()
    attention: AttentionConfig = AttentionConfig()
    graphs: GraphsConfig = GraphsConfig()
    engine: EngineConfig = EngineConfig()
    observe: ObserveConfig = ObserveConfig()

    @model_validator(mode="after")
    def _within_limits(self) -> RuntimeConfig:
        found = limit_problems(self)
        if found:
            raise ProblemsError(found)
        return self


class RequestConfig(Section):
    """One entry of a run file's `requests`: exactly one of prompt, chat, token_ids."""

    id: str | int | None = Field(None, description="the request's name in the output file")
    prompt: str | None = None
    chat: list[dict[str, Any]] | None = None
    token_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = Field(
        None, description="functions that the chat template may offer the model"
    )
    sampling: Sampling = Field(default_factory=dict, description="changes to the run's sampling")
    priority: int = Field(0, description="lower runs first under scheduler.order: priority")
    cache_salt: str | None = Field(
        None, description="prefix blocks are shared only between equal salts"
    )

    @model_validator(mode="after")
    def _one_input(self) -> RequestConfig:
        names = ("prompt", "chat", "token_ids")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"must have exactly one of {', '.join(names)}, got {' and '.join(given) or 'none'}"
            )
        if self.tools is not None and self.chat is None:
            raise ProblemsError([Problem(("tools",), f"go with chat only, not with {given[0]}")])
        return self


class RunConfig(RuntimeConfig):
    """A whole YAML run: the runtime and the work.

    The file name is the purpose or the hardware.
    """

    sampling: Sampling = Field(default_factory=dict, description="SamplingParams of every request")
    requests: list[RequestConfig] = Field(default_factory=list)
    server: ServerConfig = Field(default_factory=ServerConfig)

    @model_validator(mode="after")
    def _changes_valid(self) -> RunConfig:
        found = []
        for index, request in enumerate(self.requests):
            for problem in _sampling_problems({**self.sampling, **request.sampling}):
                found.append(
                    Problem(("requests", index, "sampling", *problem.key), problem.message)
                )
        if found:
            raise ProblemsError(found)
        return self

    def sampling_of(self, request: RequestConfig) -> dict[str, Any]:
        """The run's sampling with the request's changes."""
        return {**self.sampling, **request.sampling}
