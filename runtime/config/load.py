"""Settles a run: flags over environment over YAML over defaults, each value with its origin.

Values of `--set` are read as YAML.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from runtime.config.environment import Setting, from_environment
from runtime.config.problems import Key, config_error, problems_of
from runtime.config.provenance import Origin, Provenance
from runtime.config.schema import RunConfig
from runtime.config.yaml_file import Document, parse_value, read_yaml
from runtime.errors import ConfigError


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
        *from_environment(os.environ if env is None else env),
        *_from_sets(sets),
        *_from_overrides(overrides or {}, flags or {}),
    ):
        _merge(values, provenance, key, value, origin)
    try:
        return RunConfig.model_validate(values), provenance
    except ValidationError as error:
        raise config_error(problems_of(error, RunConfig, values), provenance.place) from None


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


def _from_overrides(overrides: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[Setting]:
    for name, value in overrides.items():
        where = flags.get(name, f"override {name}")
        yield tuple(name.split(".")), value, Origin("flag" if name in flags else "override", where)


def _from_sets(sets: Sequence[str]) -> Iterator[Setting]:
    for text in sets:
        name, equals, value = text.partition("=")
        key = tuple(name.strip().split("."))
        if not equals or not all(key):
            raise ConfigError(f"--set {text}: must be KEY=VALUE, such as scheduler.max_num_seqs=8")
        flag = f"--set {name.strip()}"
        yield key, parse_value(value, flag, key), Origin("flag", flag)
