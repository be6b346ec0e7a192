"""Reading GGUF files: values one after the other, and the metadata at their start.

The `gguf` library's reader builds an array for each of the tokenizer's hundred thousand strings,
which takes seconds; this one skips arrays, or reads them in one go. Layout:
github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_MOST_KEPT = 4096


class Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        end = self.position + length
        if end > len(self.data):
            raise struct.error("a string runs past the end of the file")
        raw = self.data[self.position : end]
        self.position = end
        return raw.decode("utf-8")

    def value(self, type_id: int, whole: bool = False) -> Any:
        """A value of the metadata; of strings, and of long arrays, None unless `whole`."""
        if type_id == _STRING:
            return self.string()
        return self._array(whole) if type_id == _ARRAY else self.scalar(_SCALARS[type_id])

    def _array(self, whole: bool) -> list[Any] | None:
        type_id, length = self.scalar("I"), self.scalar("Q")
        if type_id == _STRING:
            return self._strings(length) if whole else self._skip_strings(length)
        if type_id not in _SCALARS:
            return [self.value(type_id, whole) for _ in range(length)]
        item_bytes = struct.calcsize(f"<{_SCALARS[type_id]}")
        start, self.position = self.position, self.position + length * item_bytes
        if length > _MOST_KEPT and not whole:
            return None
        if self.position > len(self.data):
            raise struct.error("an array runs past the end of the file")
        return list(struct.unpack_from(f"<{length}{_SCALARS[type_id]}", self.data, start))

    def _strings(self, count: int) -> list[str]:
        data, position, found = self.data, self.position, []
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            found.append(data[start:position].decode("utf-8"))
        if position > len(data):
            raise struct.error("a string runs past the end of the file")
        self.position = position
        return found

    def _skip_strings(self, count: int) -> None:
        data, position = self.data, self.position
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position


@contextmanager
def opened(path: Path) -> Iterator[Cursor]:
    """A cursor behind the version; what reading raises of a damaged file becomes ModelError."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file (it does not begin with GGUF)")
            cursor = Cursor(data)
            cursor.position = 4
            version = cursor.scalar("I")
            if version not in (2, 3):
                raise ModelError(
                    f"{path}: GGUF version {version} is not supported; supported: 2, 3"
                )
            yield cursor
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
        raise ModelError(f"{path}: the GGUF header is damaged or cut short ({error})") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def metadata_of(cursor: Cursor, num_keys: int, whole: Collection[str] = ()) -> dict[str, Any]:
    """Every key's value. Arrays of strings, and long ones, are None unless named in `whole`."""
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"), key in whole)
    return metadata


def read_metadata(path: Path, whole: Collection[str] = ()) -> dict[str, Any]:
    """The metadata alone; see `metadata_of`.

    Raises:
        ModelError: not a GGUF file, an unsupported version, or cut short.
    """
    with opened(path) as cursor:
        _num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
        return metadata_of(cursor, num_keys, whole)
