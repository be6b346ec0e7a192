"""Settles a run: flags over environment over YAML over defaults, each value with its origin.

The environment's names are `STEPGRAPH_` and the key in capitals, `__` between its parts:
`STEPGRAPH_SCHEDULER__MAX_NUM_SEQS=8`. Values of `--set` and of variables are read as YAML.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from runtime.config.describe import leaf_keys
from runtime.config.problems import Key, config_error, error_of_lines, problems_of
from runtime.config.provenance import Origin, Provenance
from runtime.config.schema import RunConfig
from runtime.config.yaml_file import Document, parse_value, read_yaml
from runtime.errors import ConfigError

ENV_PREFIX = "STEPGRAPH_"
ENV_SPECIALS = frozenset({"STEPGRAPH_CACHE_DIR"})
"""Read elsewhere, no keys: the folder of converted weights and compiled kernels."""
ENV_TEST_PREFIX = "STEPGRAPH_TEST_"
"""Of variables that only tests read."""

_Setting = tuple[Key, Any, Origin]


def load_run_config(
    path: str | None,
    sets: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
) -> tuple[RunConfig, Provenance]:
    """Merge every source, check the whole, and say where each value came from.

    Args:
        path: a YAML file, or None for defaults alone.
        sets: `a.b=value` texts of `--set`, later ones win.
        env: the environment; None is the process's own.
        overrides: dotted key -> value, settled already, such as a flag of its own; they win.
        flags: dotted key -> the flag that gave an override, for messages.

    Raises:
        ConfigError: with every problem found, each with its file and line, variable or flag.
    """
    document = read_yaml(path) if path is not None else Document({}, {})
    values = {k: v for k, v in document.values.items() if not _is_empty_section(k, v)}
    provenance = Provenance({k: Origin("yaml", f"{path}:{n}") for k, n in document.lines.items()})
    for key, value, origin in (
        *_from_environment(os.environ if env is None else env),
        *_from_sets(sets),
        *_from_overrides(overrides or {}, flags or {}),
    ):
        _merge(values, provenance, key, value, origin)
    try:
        return RunConfig.model_validate(values), provenance
    except ValidationError as error:
        raise config_error(problems_of(error, RunConfig, values), provenance.place) from None


def environment_name(key: Key) -> str:
    """`STEPGRAPH_SCHEDULER__MAX_NUM_SEQS`"""
    return ENV_PREFIX + "__".join(str(part) for part in key).upper()


def _is_empty_section(name: str, value: object) -> bool:
    """`scheduler:` with all its keys commented out."""
    return value is None and name in RunConfig.model_fields


def _merge(
    values: dict[str, Any], provenance: Provenance, key: Key, value: Any, origin: Origin
) -> None:
    """Set one value; mappings merge, all else replaces."""
    if isinstance(value, Mapping) and value:
        for name, inside in value.items():
            _merge(values, provenance, (*key, name), inside, origin)
        return
    target: dict[Any, Any] = values
    for length, part in enumerate(key[:-1], start=1):
        if not isinstance(target.get(part), dict):
            if target.get(part) is not None:
                provenance.replace(key[:length], origin)
            target[part] = {}
        target = target[part]
    target[key[-1]] = value
    provenance.replace(key, origin)


def _from_overrides(overrides: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[_Setting]:
    for name, value in overrides.items():
        where = flags.get(name, f"override {name}")
        yield tuple(name.split(".")), value, Origin("flag" if name in flags else "override", where)


def _from_sets(sets: Sequence[str]) -> Iterator[_Setting]:
    for text in sets:
        name, equals, value = text.partition("=")
        key = tuple(name.strip().split("."))
        if not equals or not all(key):
            raise ConfigError(f"--set {text}: must be KEY=VALUE, such as scheduler.max_num_seqs=8")
        flag = f"--set {name.strip()}"
        yield key, parse_value(value, flag), Origin("flag", flag)


def _from_environment(env: Mapping[str, str]) -> Iterator[_Setting]:
    known = {environment_name(key): key for key in leaf_keys(RunConfig)}
    sampling = environment_name(("sampling", ""))
    unknown = []
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in ENV_SPECIALS:
            continue
        if name.startswith(ENV_TEST_PREFIX):
            continue
        if name in known:
            key: Key = known[name]
        elif name.startswith(sampling):
            key = ("sampling", name.removeprefix(sampling).lower())
        else:
            unknown.append(f"{name}: unknown variable; {_near_variable(name, list(known))}")
            continue
        yield key, parse_value(env[name], name), Origin("environment", name)
    if unknown:
        raise error_of_lines(unknown)


def _near_variable(name: str, known: list[str]) -> str:
    end = name.removeprefix(ENV_PREFIX)  # the prefix is no likeness
    ends = [k.removeprefix(ENV_PREFIX) for k in (*known, *sorted(ENV_SPECIALS))]
    near = [e for e in ends if e.endswith(f"__{end}")] or get_close_matches(end, ends, n=1)
    if near:
        return f"did you mean {ENV_PREFIX}{near[0]}?"
    return f"names are {ENV_PREFIX}SECTION__KEY, such as {environment_name(('model', 'path'))}"
