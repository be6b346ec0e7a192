"""Where each value of a configuration came from."""

from __future__ import annotations

from typing import NamedTuple

from runtime.config.problems import Key


class Origin(NamedTuple):
    """Of one value."""

    kind: str
    """default, yaml, environment or flag"""
    where: str
    """`run.yaml:7`, the variable's name or the flag; "" for a default"""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


DEFAULT = Origin("default", "")


class Provenance:
    """Key -> Origin, for every key that something other than the defaults has set."""

    def __init__(self) -> None:
        self._origins: dict[Key, Origin] = {}

    def set(self, key: Key, origin: Origin) -> None:
        """`key` now comes from there, and with it all that lies below it."""
        for below in [k for k in self._origins if k[: len(key)] == key]:
            del self._origins[below]
        self._origins[key] = origin

    def refine(self, key: Key, origin: Origin) -> None:
        """A closer place inside a value that was set as a whole, such as the item of a list."""
        self._origins[key] = origin

    def of(self, key: Key) -> Origin:
        """The origin of a value; what lies inside a value has its origin."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._origins:
                return self._origins[key[:length]]
        return DEFAULT

    def place(self, key: Key) -> str:
        """The prefix of an error message: `run.yaml:7`; "" where it is a default."""
        return self.of(key).where
