"""The header of a GGUF file: metadata and tensor table.

The `gguf` library's reader builds an array for each of the tokenizer's hundred thousand strings,
which takes seconds; this one skips them. Layout: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from runtime.errors import ModelError

ROPE_FACTORS_TENSOR = "rope_freqs.weight"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_MOST_KEPT = 4096


class TensorInfo(NamedTuple):
    """One tensor of the file."""

    shape: tuple[int, ...]
    """Rows first, as torch has it."""

    type_id: int
    """A GGMLQuantizationType."""

    offset: int
    """Of its data, from the start of the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor table; arrays of strings, and long ones, are kept as None."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    frequency_factors: tuple[float, ...]
    """Divisors of the rotary frequencies (llama3 scaling); empty where the file has none."""


def read_header(path: Path) -> GgufHeader:
    """Parse the header.

    Raises:
        ModelError: not a GGUF file, an unsupported version, or cut short.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
        raise ModelError(f"{path}: the GGUF header is damaged or cut short ({error})") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


class _Cursor:
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

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        return self.array() if type_id == _ARRAY else self.scalar(_SCALARS[type_id])

    def array(self) -> list[Any] | None:
        """The items; None, skipped, for strings and for long arrays."""
        type_id, length = self.scalar("I"), self.scalar("Q")
        if type_id == _STRING:
            self._skip_strings(length)
            return None
        if type_id in _SCALARS and length > _MOST_KEPT:
            self.position += length * struct.calcsize(f"<{_SCALARS[type_id]}")
            return None
        return [self.value(type_id) for _ in range(length)]

    def _skip_strings(self, count: int) -> None:
        data, position = self.data, self.position
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    if data[:4] != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file (it does not begin with GGUF)")
    cursor = _Cursor(data)
    cursor.position = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported; supported: 2, 3")
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    table = []
    for _ in range(num_tensors):
        name, dimensions = cursor.string(), cursor.scalar("I")
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
        table.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    start = math.ceil(cursor.position / alignment) * alignment
    tensors = {name: TensorInfo(shape, kind, start + offset) for name, shape, kind, offset in table}
    factors: tuple[float, ...] = ()
    if ROPE_FACTORS_TENSOR in tensors:
        info = tensors[ROPE_FACTORS_TENSOR]
        factors = struct.unpack_from(f"<{math.prod(info.shape)}f", data, info.offset)
    return GgufHeader(path, metadata, tensors, factors)
