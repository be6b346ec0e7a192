"""The requests that `generate` runs: from the run file, from --prompt and --chat, or from JSONL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.config import RequestConfig, RunConfig
from runtime.config.encodings import as_utf8
from runtime.config.input_lines import name_of_input, read_lines
from runtime.errors import ConfigError


@dataclass(slots=True)
class Job:
    """One request to run; `error` says why a line of the input is none."""

    index: int
    request: RequestConfig | None
    sampling: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    line: int | None = None
    """Its line of the input, from 1."""
    id: str | int | None = None
    """What its line, or its entry in the run file, calls it."""
    place: str = ""
    """`in.jsonl:3` or `requests[2]`: where whoever wrote it finds it; "" for one of the flags."""

    @property
    def title(self) -> str:
        """One line that tells the request apart for people."""
        if self.request is None:
            return "(no request)"
        if self.request.prompt is not None:
            text = self.request.prompt
        elif self.request.chat is not None:
            text = _content_of(self.request.chat[-1]) if self.request.chat else ""
        else:
            text = f"{len(self.request.token_ids or ())} token ids"
        line = " ".join(text.split())
        return line if len(line) <= 76 else line[:75] + "…"


def _content_of(message: dict[str, Any]) -> str:
    content = message.get("content", "")
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


def collect_jobs(
    run: RunConfig,
    asked: Sequence[tuple[str, str]],
    input_path: str | None,
    max_tokens: int | None,
) -> list[Job]:
    """The jobs in the order of their index; flags replace the requests of the run file.

    A line of the input that is no request becomes a job with an error, and harms no other.

    Args:
        asked: ("prompt", text) or ("chat", the user's message), in the order of the flags.

    Raises:
        ConfigError: the input cannot be read, or there is nothing to run.
    """
    forced = {} if max_tokens is None else {"max_tokens": max_tokens}
    jobs: list[Job] = []

    def add(request: RequestConfig | None, *, error: str | None = None, **more: Any) -> None:
        sampling = {**run.sampling_of(request), **forced} if request else {}
        jobs.append(Job(len(jobs), request, sampling, error, **more))

    if not asked and input_path is None:
        for index, request in enumerate(run.requests):
            add(request, id=request.id, place=f"requests[{index}]")
    for kind, text in asked:
        add(_request_of(kind, as_utf8(text)))
    if input_path is not None:
        name = name_of_input(input_path)
        for line in read_lines(input_path):
            place = f"{name}:{line.number}"
            add(line.request, error=line.error, line=line.number, id=line.id, place=place)
    if not jobs:
        raise ConfigError(
            "nothing to run: give --chat TEXT, --prompt TEXT, --input F.jsonl, or requests: in the "
            "run file"
        )
    if all(job.request is None for job in jobs):
        raise ConfigError(
            f"no line of --input {name_of_input(str(input_path))} is a request; "
            f"the first: {jobs[0].error}"
        )
    return jobs


def _request_of(kind: str, text: str) -> RequestConfig:
    if kind == "chat":
        return RequestConfig(chat=[{"role": "user", "content": text}])
    return RequestConfig(prompt=text)
