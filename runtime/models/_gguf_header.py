"""The header of a GGUF file: metadata and tensor table."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from runtime.machine.gguf_reader import Cursor, metadata_of, opened

ROPE_FACTORS_TENSOR = "rope_freqs.weight"


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
    with opened(path) as cursor:
        return _parse(path, cursor)


def _parse(path: Path, cursor: Cursor) -> GgufHeader:
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = metadata_of(cursor, num_keys)
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
        factors = struct.unpack_from(f"<{math.prod(info.shape)}f", cursor.data, info.offset)
    return GgufHeader(path, metadata, tensors, factors)
