"""Requests and arrivals that are read from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from runtime.config import RequestConfig
from runtime.config.input_lines import name_of_input, parse_object, read_lines, read_utf8
from runtime.errors import ConfigError
from runtime.workbench.datasets import exactly

T = TypeVar("T")
_BLOCK_LEN = 512
"""Tokens that one of a trace's hash_ids stands for."""


@dataclass(frozen=True, slots=True)
class JsonlDataset:
    """The requests of a file, in its order."""

    all_requests: tuple[RequestConfig, ...]
    name: str = "jsonl"

    def requests(
        self, count: int, vocabulary: Sequence[int], rng: np.random.Generator
    ) -> list[RequestConfig]:
        """See Dataset."""
        return list(self.all_requests[:count])


def read_jsonl(path: str, flag: str, sampling: Mapping[str, Any]) -> JsonlDataset:
    """A file whose lines are those of `generate --input`.

    Args:
        sampling: fields that win over those of a line.

    Raises:
        ConfigError: it cannot be read, has no request, or a line is none.
    """
    requests = []
    for line in read_lines(path, flag):
        if line.request is None:
            raise ConfigError(f"{flag} {line.error}")
        changed = {**line.request.sampling, **sampling}
        requests.append(line.request.model_copy(update={"sampling": changed}))
    if not requests:
        raise ConfigError(f"{flag} {name_of_input(path)}: has no request")
    return JsonlDataset(tuple(requests))


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One request of a trace: when it came, and how long it was."""

    time_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()
    """Names of its blocks of 512 tokens: where two requests begin with the same names, they begin
    with the same tokens."""


@dataclass(frozen=True, slots=True)
class TraceDataset:
    """Prompts of random token ids with the lengths and shared prefixes of a recorded load."""

    lines: tuple[TraceLine, ...]
    sampling: Mapping[str, Any]
    name: str = "trace"

    def requests(
        self, count: int, vocabulary: Sequence[int], rng: np.random.Generator
    ) -> list[RequestConfig]:
        """See Dataset."""
        blocks: dict[int, list[int]] = {}

        def tokens_of(line: TraceLine) -> Iterator[int]:
            for name in line.hash_ids:
                if name not in blocks:
                    blocks[name] = rng.choice(vocabulary, _BLOCK_LEN).tolist()
                yield from blocks[name]
            missing = line.input_len - len(line.hash_ids) * _BLOCK_LEN
            yield from rng.choice(vocabulary, max(0, missing)).tolist()

        return [
            RequestConfig(
                token_ids=list(tokens_of(line))[: line.input_len],
                sampling=exactly(line.output_len, self.sampling),
            )
            for line in self.lines[:count]
        ]


def read_trace(path: str, flag: str, sampling: Mapping[str, Any]) -> TraceDataset:
    """A file of Mooncake's format: a JSON object a line with `timestamp` in ms, `input_length` and
    `output_length` in tokens, and maybe `hash_ids`; sorted by time.

    Raises:
        ConfigError: it cannot be read, or is something else.
    """
    lines = sorted(_each(path, flag, _trace_line), key=lambda line: line.time_s)
    return TraceDataset(tuple(lines), sampling)


def read_arrivals(path: str, flag: str) -> tuple[float, ...]:
    """The `timestamp` (ms) of each line of a JSONL file, as seconds, in order.

    Raises:
        ConfigError: it cannot be read, or a line has none.
    """
    return tuple(sorted(_each(path, flag, _time_s)))


def _each(path: str, flag: str, take: Callable[[dict[str, Any]], T]) -> list[T]:
    """What `take` makes of each line's object.

    Raises:
        ConfigError: naming file and line.
    """
    name, found = name_of_input(path), []
    for number, line in enumerate(read_utf8(path, flag).splitlines(), start=1):
        if line.strip():
            try:
                found.append(take(parse_object(line, "a JSON object with timestamp")))
            except (ConfigError, ValueError, RecursionError) as error:
                raise ConfigError(f"{flag} {name}:{number}: {error}") from None
    if not found:
        raise ConfigError(f"{flag} {name}: has no line")
    return found


def _trace_line(values: dict[str, Any]) -> TraceLine:
    hash_ids = values.get("hash_ids", [])
    if not isinstance(hash_ids, list) or not all(type(i) is int for i in hash_ids):
        raise ConfigError("hash_ids: must be a list of integers")
    lengths = (_positive(values, "input_length"), _positive(values, "output_length"))
    return TraceLine(_time_s(values), *lengths, tuple(hash_ids))


def _time_s(values: dict[str, Any]) -> float:
    value: Any = values.get("timestamp")
    if type(value) not in (int, float) or not 0 <= value < np.inf:
        raise ConfigError(f"timestamp: must be a number of milliseconds >= 0, got {value!r:.60}")
    return float(value) / 1e3


def _positive(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}: must be an integer >= 1, got {value!r:.60}")
    return value
