"""Sizes and lists of cores as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)")
_LAST_CORE = 65535
_CORES = re.compile(r"(\d+)(?:-(\d+))?")
_POWERS = {"B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_memory(value: int | str) -> int:
    """Bytes of `4GiB` (powers of 1024), `4GB` (powers of 1000) or a plain number of bytes.

    Raises:
        ValueError: it is no size, or not at least one byte.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(_allowed(value))
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(_allowed(value))
        unit = match[2]
        base = 1024 if unit.endswith("iB") else 1000
        size = int(float(match[1]) * base ** _POWERS[unit[0]])
    else:
        size = value
    if size < 1:
        raise ValueError(_allowed(value))
    return size


def format_memory(num_bytes: int) -> str:
    """`4.0 GiB`: for people, rounded."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_cores(text: str) -> list[int]:
    """Core numbers of `0-3,8`, in the order given.

    Raises:
        ValueError: it is no such list, or names a core twice.
    """
    cores: list[int] = []
    for part in text.split(","):
        match = _CORES.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last > _LAST_CORE:
            raise ValueError(f'must be true, false, or core numbers such as "0-3,8", got {text!r}')
        cores += range(first, last + 1)
    if len(set(cores)) < len(cores):
        raise ValueError(f"must name each core once, got {text!r}")
    return cores


def format_cores(cores: Iterable[int]) -> str:
    """`0-3,8`"""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _allowed(value: object) -> str:
    return f'must be bytes >= 1 (a number, or a size such as "512MiB" or "4GiB"), got {value!r}'
