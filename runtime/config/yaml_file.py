"""Reads YAML 1.2 into plain values and remembers on which line each stands.

In YAML 1.2 `yes`, `no`, `on` and `off` are strings, and nothing but `true` and `false` is a
boolean.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scalarfloat import ScalarFloat
from ruamel.yaml.scalarint import ScalarInt
from ruamel.yaml.scalarstring import ScalarString

from runtime.config.encodings import as_utf8, by_locale, other_encoding
from runtime.config.problems import Key, dotted
from runtime.errors import ConfigError

_PLAIN = ((ScalarBoolean, bool), (ScalarInt, int), (ScalarFloat, float), (ScalarString, str))
_SCALARS = (bool, int, float, str, type(None))


class Document(NamedTuple):
    values: dict[str, Any]
    lines: dict[Key, int]
    """Key -> line, counted from 1; items of lists included."""


def read_yaml(path: str) -> Document:
    """Read a file whose top is a mapping.

    Raises:
        ConfigError: no such file, an empty one, no text in UTF-8, broken YAML (with its line), a
            duplicate key, a tag, or a top that is no mapping.
    """
    try:
        data = Path(path).read_bytes()
        encoding = other_encoding(data)
        if encoding:
            raise ConfigError(f"{path}: is in {encoding}, and must be text in UTF-8")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: must be text in UTF-8 ({error.reason})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    root = _load(text, path)
    if root is None:
        raise ConfigError(f"{path}: the file is empty; it must hold sections (model:, ...)")
    if not isinstance(root, CommentedMap):
        raise ConfigError(f"{path}: must be a mapping of sections (model:, scheduler:, ...)")
    lines: dict[Key, int] = {}
    return Document(_to_plain(root, (), 1, lines, path, ()), lines)


def parse_value(text: str, where: str, key: Key = ()) -> Any:
    """One value as YAML, for flags and environment variables: `8`, `true`, `auto`, `[1, 2]`.

    Under any locale UTF-8 is understood. Sampling is about text; other strings may be paths, which
    keep the form in which the system opens them.

    Raises:
        ConfigError: it is no YAML; `where` names the flag or variable.
    """
    in_utf8 = as_utf8(text)
    value = _to_plain(_load(in_utf8, where), (), 1, {}, where, ())
    if isinstance(value, str) and in_utf8 != text and key[:1] != ("sampling",):
        return by_locale(value)
    return value


def _load(text: str, where: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return YAML(typ="rt", pure=True).load(text)
        except DuplicateKeyError as error:
            what = str(error.problem).split(" with value")[0].removeprefix("found ")
            raise ConfigError(f"{where}:{_line(error)}: {what}; each key stands once") from None
        except MarkedYAMLError as error:
            what = ", ".join(str(part) for part in (error.context, error.problem) if part)
            raise ConfigError(f"{where}:{_line(error)}: no valid YAML: {what}") from None
        except Exception as error:  # the library leaks other kinds on strange input
            what = " ".join(str(error).split())
            raise ConfigError(f"{where}: no valid YAML: {what}") from None


def _line(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def _to_plain(
    node: Any, key: Key, line: int, lines: dict[Key, int], where: str, parents: tuple[int, ...]
) -> Any:
    """Plain dicts, lists and scalars; notes the line of each key on the way."""
    lines[key] = line
    if id(node) in parents:
        raise ConfigError(f"{where}:{line}: {dotted(key)} contains itself through an alias")
    inside = (*parents, id(node))
    if isinstance(node, (CommentedMap, CommentedSeq)):
        pairs = node.items() if isinstance(node, CommentedMap) else enumerate(node)
        positions = node.lc.data or {}
        made = [
            (
                name,
                _to_plain(
                    value,
                    (*key, name),
                    positions[name][0] + 1 if name in positions else line,
                    lines,
                    where,
                    inside,
                ),
            )
            for name, value in pairs
        ]
        return dict(made) if isinstance(node, CommentedMap) else [value for _, value in made]
    for special, plain in _PLAIN:
        if isinstance(node, special):
            return plain(node)
    if isinstance(node, TaggedScalar) or type(node) not in _SCALARS:
        raise ConfigError(
            f"{where}:{line}: {dotted(key)}: must be a plain YAML value (string, number, boolean, "
            "list or mapping), without a tag; write dates and the like in quotes"
        )
    return node
