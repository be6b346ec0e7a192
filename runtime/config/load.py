"""Settles a run: flags over environment over YAML over defaults, each value with its origin.

The environment's names are `STEPGRAPH_` and the key in capitals, `__` between its parts:
`STEPGRAPH_SCHEDULER__MAX_NUM_SEQS=8`. Values of flags and variables are read as YAML.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runtime.config.describe import leaf_keys
from runtime.config.problems import Key, Problem, config_error, dotted, problems_of
from runtime.config.provenance import Origin, Provenance
from runtime.config.schema import RunConfig
from runtime.config.yaml_file import parse_value, read_yaml
from runtime.errors import ConfigError

ENV_PREFIX = "STEPGRAPH_"
ENV_SPECIALS = frozenset({"STEPGRAPH_CACHE_DIR", "STEPGRAPH_WALK_STEPS"})
"""Read elsewhere, no keys: the folder of converted weights, the length of the random-walk test."""


class _Layers:
    """The merged values so far; a later layer wins, mappings merge."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.provenance = Provenance()

    def put(self, key: Key, value: Any, origin: Origin, lines: Mapping[Key, int] | None = None):
        """Set a value; `lines` gives closer places where it is read from a file."""
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                self.put((*key, name), inner, self._closer(origin, (*key, name), lines), lines)
            return
        if value is None and len(key) == 1 and lines:
            return  # a section whose keys are all commented out
        self._assign(key, value)
        self.provenance.set(key, origin)
        self._refine(key, value, origin, lines)

    def _assign(self, key: Key, value: Any) -> None:
        target = self.values
        for part in key[:-1]:
            if not isinstance(target.get(part), dict):
                target[part] = {}
            target = target[part]
        if not (value == {} and isinstance(target.get(key[-1]), dict)):
            target[key[-1]] = value

    def _refine(
        self, key: Key, value: Any, origin: Origin, lines: Mapping[Key, int] | None
    ) -> None:
        for inner in [k for k in lines or {} if k[: len(key)] == key and len(k) > len(key)]:
            self.provenance.refine(inner, self._closer(origin, inner, lines))

    @staticmethod
    def _closer(origin: Origin, key: Key, lines: Mapping[Key, int] | None) -> Origin:
        if not lines or key not in lines:
            return origin
        return Origin(origin.kind, f"{origin.where.rpartition(':')[0]}:{lines[key]}")
