"""Whether a JSON schema can be met by a finite text: one that asks for itself cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROOT = "#"


def schema_can_end(schema: Any) -> bool:
    """False where every value of the schema would have to hold another of the same, without end.

    What cannot be told from the schema alone counts as ending.
    """
    return _Walk(schema).can_end(schema, frozenset({ROOT}))


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._ending: set[str] = set()
        """References that are known to end."""

    def can_end(self, schema: Any, inside: frozenset[str]) -> bool:
        """`inside` are the references that lead here: to need one again is to need it for ever."""
        if not isinstance(schema, Mapping) or "const" in schema or "enum" in schema:
            return True
        if not all(self.can_end(part, inside) for part in _list(schema.get("allOf"))):
            return False
        for name in ("anyOf", "oneOf"):
            parts = _list(schema.get(name))
            if parts and not any(self.can_end(part, inside) for part in parts):
                return False
        reference = schema.get("$ref")
        if isinstance(reference, str) and not self._reference_can_end(reference, inside):
            return False
        types = schema.get("type")
        kinds = [types] if isinstance(types, str) else _list(types)
        return not kinds or any(self._kind_can_end(kind, schema, inside) for kind in kinds)

    def _kind_can_end(self, kind: Any, schema: Mapping[str, Any], inside: frozenset[str]) -> bool:
        if kind == "object":
            properties = schema.get("properties")
            needed = [name for name in _list(schema.get("required")) if isinstance(name, str)]
            if not isinstance(properties, Mapping):
                return True
            return all(self.can_end(properties.get(name), inside) for name in needed)
        if kind == "array":
            least = schema.get("minItems", 0)
            first = _list(schema.get("prefixItems"))
            needs_more = isinstance(least, int) and least > len(first)
            needed_items = first[:least] if isinstance(least, int) else []
            items = [*needed_items, *([schema.get("items")] if needs_more else [])]
            return all(self.can_end(item, inside) for item in items)
        return True

    def _reference_can_end(self, reference: str, inside: frozenset[str]) -> bool:
        if reference in self._ending:
            return True
        if reference in inside:
            return False
        ends = self.can_end(self._resolve(reference), inside | {reference})
        if ends:
            self._ending.add(reference)
        return ends

    def _resolve(self, reference: str) -> Any:
        """The part that a local reference such as `#/$defs/node` names; None where there is none:
        the compiler has refused it."""
        if not reference.startswith(ROOT):
            return None
        found = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(step)
            elif isinstance(found, Sequence) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return found


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
