"""Text from outside: files in another encoding than UTF-8, arguments under a poor locale."""

from __future__ import annotations

import codecs
import os

_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def other_encoding(data: bytes) -> str:
    """UTF-16 or UTF-32 with a byte order mark, UTF-16LE and the like without; else "".

    JSON and YAML begin with an ASCII character, so that zeros beside it tell the width.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    zeros = "".join("0" if byte == 0 else "x" for byte in data[:4])
    return {"x000": "UTF-32LE", "000x": "UTF-32BE", "x0x0": "UTF-16LE", "0x0x": "UTF-16BE"}.get(
        zeros, ""
    )


def as_utf8(word: str) -> str:
    """An argument or variable whose bytes are UTF-8, under a locale that has other characters or
    none. Not for paths: those are opened by the locale's rules."""
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word


def by_locale(text: str) -> str:
    """What `as_utf8` made a text of: a path that the system can open."""
    return os.fsdecode(text.encode("utf-8"))
