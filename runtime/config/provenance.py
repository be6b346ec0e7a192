"""Where each value of a configuration came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from runtime.config.problems import Key


class Origin(NamedTuple):
    """Of one value."""

    kind: str
    """default, yaml, environment, flag or override (from Python)"""
    where: str
    """`run.yaml:7`, the variable's name or the flag; "" for a default"""


DEFAULT = Origin("default", "")


class Provenance:
    """Key -> Origin, for every key that something other than the defaults has set."""

    def __init__(self, origins: Mapping[Key, Origin]) -> None:
        self._origins = dict(origins)

    def replace(self, key: Key, origin: Origin) -> None:
        """The value of `key` now comes from there, with all that lies inside it."""
        for inside in [k for k in self._origins if k[: len(key)] == key]:
            del self._origins[inside]
        self._origins[key] = origin

    def of(self, key: Key) -> Origin:
        return self._origins.get(key, DEFAULT)

    def place(self, key: Key) -> str:
        """Where an error about the key is mended, such as `run.yaml:7`.

        For a key that nobody set, where its section is, or what set something inside it, or the
        file begins; "" without a file.
        """
        for length in range(len(key), 0, -1):
            if key[:length] in self._origins:
                return self._origins[key[:length]].where
        inside = (o.where for k, o in self._origins.items() if key and k[: len(key)] == key)
        return next(inside, self._origins.get((), DEFAULT).where)
