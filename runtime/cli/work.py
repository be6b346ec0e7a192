"""The requests that `generate` runs: from the run file, from --prompt, or from a JSONL file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from runtime.config import RequestConfig, RunConfig
from runtime.config.problems import unknown_name
from runtime.errors import ConfigError
from runtime.params import SamplingParams

_OWN_FIELDS = tuple(RequestConfig.model_fields)
_SAMPLING_FIELDS = tuple(f.name for f in fields(SamplingParams))


@dataclass(slots=True)
class Job:
    """One request to run; `error` says why a line of the input is none."""

    index: int
    request: RequestConfig | None
    sampling: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def title(self) -> str:
        """One line that tells the request apart for people."""
        if self.request is None:
            return "(no request)"
        if self.request.prompt is not None:
            text = self.request.prompt
        elif self.request.chat is not None:
            text = str(self.request.chat[-1].get("content", "")) if self.request.chat else ""
        else:
            text = f"{len(self.request.token_ids or ())} token ids"
        line = " ".join(text.split())
        return line if len(line) <= 76 else line[:75] + "…"


def collect_jobs(
    run: RunConfig, prompts: Sequence[str], input_path: str | None, max_tokens: int | None
) -> list[Job]:
    """The jobs in the order of their index; flags replace the requests of the run file.

    A line of the input that is no request becomes a job with an error, and harms no other.

    Raises:
        ConfigError: the input cannot be read, or there is nothing to run.
    """
    requests: Iterable[RequestConfig | str] = run.requests
    if prompts or input_path is not None:
        requests = [RequestConfig(prompt=text) for text in prompts]
        if input_path is not None:
            requests = [*requests, *_read_jsonl(input_path)]
    forced = {} if max_tokens is None else {"max_tokens": max_tokens}
    jobs = []
    for index, request in enumerate(requests):
        if isinstance(request, str):
            jobs.append(Job(index, None, error=request))
        else:
            jobs.append(Job(index, request, {**run.sampling_of(request), **forced}))
    if not jobs:
        raise ConfigError(
            "nothing to run: give --prompt TEXT, --input F.jsonl, or requests: in the run file"
        )
    if all(job.request is None for job in jobs):
        raise ConfigError(
            f"no line of --input {input_path} is a request; the first: {jobs[0].error}"
        )
    return jobs


def _read_jsonl(path: str) -> Iterator[RequestConfig | str]:
    """Requests, or for a line that is none the error's text. Empty lines are skipped."""
    try:
        if path == "-":
            lines = sys.stdin.buffer.read().splitlines()
        else:
            with open(path, "rb") as file:
                lines = file.read().splitlines()
    except OSError as error:
        raise ConfigError(f"--input {path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield parse_line(line)
            except (ConfigError, ValueError, RecursionError) as error:
                yield f"{path}:{number}: {error}"


def parse_line(line: bytes) -> RequestConfig:
    """One JSON object: prompt, chat or token_ids, and sampling fields beside them or in `sampling`.

    Raises:
        ConfigError, ValueError: it is no request; the text says why.
    """
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"no valid JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(values, dict):
        raise ConfigError("must be a JSON object with prompt, chat or token_ids")
    for name in values:
        if name not in _OWN_FIELDS and name not in _SAMPLING_FIELDS:
            raise ConfigError(f"{name}: {unknown_name(name, [*_OWN_FIELDS, *_SAMPLING_FIELDS])}")
    own = {name: value for name, value in values.items() if name in _OWN_FIELDS}
    sampling = own.pop("sampling", {})
    if isinstance(sampling, dict):
        beside = {name: value for name, value in values.items() if name in _SAMPLING_FIELDS}
        sampling = {**sampling, **beside}
    return RequestConfig(**own, sampling=sampling)
