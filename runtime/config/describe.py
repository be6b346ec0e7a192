"""Reads the schema's annotations.

Which keys there are, what a key allows, and what to write instead of a near miss.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_PLURALS = {int: "integers", float: "numbers", str: "strings", bool: "true or false"}
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")


def leaf_keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every settable key in the schema's order; a free mapping such as `sampling` is one key."""
    for name, field in model.model_fields.items():
        if _is_section(field.annotation):
            yield from leaf_keys(field.annotation, (*prefix, name))  # type: ignore[arg-type]
        else:
            yield (*prefix, name)


def annotation_of(model: type[BaseModel], key: tuple[str | int, ...]) -> Any:
    """The annotation at a key, constraints included; None where the schema says nothing of it."""
    annotation: Any = model
    for part in key:
        if isinstance(part, int):
            items = [get_args(b)[0] for b in branches(annotation) if get_origin(b) is list]
            annotation = items[0] if items else None
        elif _is_section(annotation) and part in annotation.model_fields:
            field = annotation.model_fields[part]
            annotation = field.annotation
            if field.metadata:
                annotation = Annotated[(annotation, *field.metadata)]
        else:
            return None
    return annotation


def branches(annotation: Any) -> list[Any]:
    """The alternatives of a union, flat; constraints stay with their branch."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [b for arg in get_args(annotation) for b in branches(arg)]
    if get_origin(annotation) is Annotated and len(branches(get_args(annotation)[0])) > 1:
        return branches(get_args(annotation)[0])
    return [annotation]


def base_kinds(annotation: Any) -> set[Any]:
    """The types that a key takes, constraints left out."""
    return {_base(b) for b in branches(annotation)}


def allowed_values(annotation: Any) -> str:
    """`an integer >= 1 or auto`"""
    words = [_allowed_by(b) for b in branches(annotation)]
    return " or ".join(dict.fromkeys(words))


def show(value: object) -> str:
    """A value as YAML would spell it, cut where it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def as_yaml(message: str) -> str:
    """A message about a Python value, for those who wrote YAML or JSON."""
    return re.sub(r"\bgot (None|True|False)\b", lambda m: f"got {_CONSTANTS[m[1]]}", message)


def hint_for(annotation: Any, value: object) -> str:
    """What to write instead, where the value is a near miss; starts with `; `, or is ""."""
    kinds = base_kinds(annotation)
    if bool in kinds and isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE + _FALSE:
            return f"; write {'true' if word in _TRUE else 'false'}, without quotes"
    if int in kinds or float in kinds:
        hint = _number_hint(value)
        if hint:
            return hint
    literals = [
        str(a) for b in branches(annotation) if get_origin(b) is Literal for a in get_args(b)
    ]
    if literals and isinstance(value, str):
        near = get_close_matches(value.lower(), literals, n=1)
        if near:
            return f"; did you mean {near[0]}?"
    if isinstance(value, Mapping) and any(get_origin(kind) is list for kind in kinds):
        return "; the items of a list cannot be set one by one, write the whole list"
    if str in kinds and isinstance(value, (bool, int, float)):
        return f'; write it in quotes: "{show(value)}"'
    return ""


def _number_hint(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if not isinstance(value, str):
        return ""
    text = value.strip().replace("_", "").replace(",", "")
    if re.fullmatch(r"[+-]?\d+(\.\d+)?", text):
        return f"; write {text}, without quotes"
    scaled = re.fullmatch(r"(\d+)\s*([kKmMgG])", text)
    if scaled:
        power = "kmg".index(scaled[2].lower()) + 1
        number = int(scaled[1])
        return f"; write the number out: {number * 1000**power} or {number * 1024**power}"
    return ""


def _allowed_by(branch: Any) -> str:
    base = _base(branch)
    if base is type(None):
        return "null"
    if get_origin(base) is Literal:
        values = [str(v) for v in get_args(base)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if get_origin(base) is list:
        item = _base(get_args(base)[0])
        return f"a list of {_PLURALS.get(item, 'mappings')}"
    if _is_section(base):
        return f"a mapping with the keys {', '.join(base.model_fields)}"
    if get_origin(base) is dict or base is dict:
        return "a mapping"
    return " ".join([_NAMES.get(base, "something else"), *_bounds(branch)])


def _bounds(branch: Any) -> list[str]:
    constraints = [branch, *getattr(branch, "__metadata__", ())]
    constraints += [m for c in constraints for m in getattr(c, "metadata", ())]
    words = [
        f"{sign} {getattr(c, name):g}"
        for name, sign in _BOUNDS
        for c in constraints
        if getattr(c, name, None) is not None
    ]
    return [" and ".join(dict.fromkeys(words))] if words else []


def _base(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
