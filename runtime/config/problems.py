"""What is wrong with a configuration, in words.

A message names the key, where it was set, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from runtime.config.describe import allowed_values, annotation_of, hint_for, leaf_keys, show
from runtime.errors import ConfigError

Key = tuple[str | int, ...]
"""Where a value sits: `("scheduler", "max_num_seqs")`, `("requests", 2, "prompt")`."""


class Problem(NamedTuple):
    key: Key
    message: str


class ProblemsError(ValueError):
    """Several problems found by one validator; pydantic carries it out."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{dotted(p.key)}: {p.message}" for p in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ProblemsError], tuple[tuple[Problem, ...]]]:
        return ProblemsError, (self.problems,)


def dotted(key: Key) -> str:
    """`requests[2].prompt`"""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the configuration"


def config_error(
    problems: Iterable[Problem], origin: Callable[[Key], str] | None = None
) -> ConfigError:
    """One error with a line per problem; `origin` gives `run.yaml:7`, or "" where it is unknown."""
    lines = []
    for problem in problems:
        where = origin(problem.key) if origin else ""
        name = dotted(problem.key)
        if where:
            name = where if where.endswith(f" {name}") else f"{where}: {name}"
        lines.append(f"{name}: {problem.message}")
    return error_of_lines(lines)


def error_of_lines(lines: Sequence[str]) -> ConfigError:
    """One error that says them all."""
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError(f"{len(lines)} problems in the configuration:\n  " + "\n  ".join(lines))


def problems_of(error: ValidationError, model: type[BaseModel], data: object) -> list[Problem]:
    """Translate pydantic's report; the branches of a union become one problem."""
    found: dict[Key, Problem] = {}
    for detail in error.errors():
        kind, loc = detail["type"], detail["loc"]
        key = _key_in(data, loc, whole=kind in ("missing", "invalid_key"))
        inner = detail.get("ctx", {}).get("error")
        if kind == "value_error" and isinstance(inner, ProblemsError):
            for problem in inner.problems:
                found.setdefault(key + problem.key, Problem(key + problem.key, problem.message))
        else:
            if kind == "missing":
                key = _first_required(model, key)
            message = _message(kind, model, key, detail["input"], inner, detail["msg"])
            found.setdefault(key, Problem(key, message))
    inner_keys = {key[:n] for key in found for n in range(1, len(key))}
    return [p for p in found.values() if p.key not in inner_keys]


def _first_required(model: type[BaseModel], key: Key) -> Key:
    """Of a missing section, the key in it that must be written."""
    fields = getattr(annotation_of(model, key), "model_fields", {})
    return next(((*key, name) for name, field in fields.items() if field.is_required()), key)


def unknown_name(name: str, known: Sequence[str]) -> str:
    """`unknown key; did you mean ...?`"""
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key; {hint}"


def _key_in(data: object, loc: tuple[int | str, ...], whole: bool) -> Key:
    """Drop the union tags from a pydantic location: what does not lead into the data, is one."""
    key: list[str | int] = []
    for part in loc:
        if isinstance(data, (list, tuple)):
            leads = isinstance(part, int) and part < len(data)
        else:
            leads = isinstance(data, Mapping) and part in data
        if leads:
            data = data[part]  # type: ignore[index]
        elif isinstance(data, BaseModel) and isinstance(part, str) and hasattr(data, part):
            data = getattr(data, part)
        elif not whole:
            continue
        key.append(part)
    return tuple(key)


def _message(
    kind: str,
    model: type[BaseModel],
    key: Key,
    value: object,
    inner: BaseException | None,
    pydantic_text: str,
) -> str:
    if kind == "extra_forbidden":
        return _unknown_key(model, key)
    if kind == "invalid_key":
        return f"keys must be strings, got {show(key[-1])}"
    annotation = annotation_of(model, key)
    if kind == "missing":
        return f"missing; it must be {allowed_values(annotation)}"
    if kind == "value_error":
        return str(inner)
    if annotation is None:
        return f"{pydantic_text}, got {show(value)}"
    return f"must be {allowed_values(annotation)}, got {show(value)}{hint_for(annotation, value)}"


_SYNONYMS = {"messages": "chat"}


def _unknown_key(model: type[BaseModel], key: Key) -> str:
    name = str(key[-1])
    section = annotation_of(model, key[:-1]) if len(key) > 1 else model
    known = list(section.model_fields) if hasattr(section, "model_fields") else []
    if _SYNONYMS.get(name) in known:
        return f"unknown key; did you mean {_SYNONYMS[name]}?"
    if not get_close_matches(name, known, n=1):
        elsewhere = [k for k in leaf_keys(model) if k[-1] == name]
        if elsewhere:
            return f"unknown key; did you mean {dotted(elsewhere[0])}?"
    return unknown_name(name, known)
