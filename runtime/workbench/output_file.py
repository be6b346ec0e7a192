"""A result file that is there whole, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from runtime.errors import ConfigError


class OutputFile:
    """Looked at before the work begins, so that a path that cannot be written costs no time, and
    written when the work is done; until then the older file stays.

    Args:
        flag: that named the path, for messages.

    Raises:
        ConfigError: the path cannot be written.
    """

    def __init__(self, path: str, flag: str) -> None:
        self.path = path
        self._target = os.path.realpath(path)
        """Where a link leads: the link stays."""
        self._is_plain = os.path.isfile(self._target) or not os.path.exists(self._target)
        folder = os.path.dirname(self._target)
        if os.path.isdir(self._target):
            reason = "is a folder"
        elif not os.path.isdir(folder):
            reason = f"there is no folder {os.path.dirname(path)}"
        elif not os.access(folder if self._is_plain else self._target, os.W_OK):
            reason = "permission denied"
        else:
            return
        raise ConfigError(f"{flag} {path}: cannot be written: {reason}")

    def write(self, save: Callable[[str], None]) -> None:
        """Have `save` write to a path, which then becomes this file.

        Raises:
            OSError: with this file's name.
        """
        root, extension = os.path.splitext(self._target)
        place = f"{root}.{os.getpid()}.part{extension}" if self._is_plain else self._target
        try:
            save(place)
            if self._is_plain:
                os.replace(place, self._target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        finally:
            if self._is_plain:
                with suppress(OSError):
                    os.unlink(place)

    def write_text(self, text: str) -> None:
        def save(path: str) -> None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

        self.write(save)


def as_json(value: Any) -> str:
    """Indented, but lists on one line; a lone surrogate of a text as its escape.

    Raises:
        ValueError: it holds a number that JSON has not.
    """
    if not isinstance(value, dict):
        return json.dumps(value, allow_nan=False)
    lines = [
        f"  {json.dumps(key)}: " + as_json(inside).replace("\n", "\n  ")
        for key, inside in value.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"
