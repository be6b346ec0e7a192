"""Service levels: the latencies that a request must keep to count as good."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from runtime.errors import ConfigError
from runtime.workbench.records import RequestRecord

NAMES = ("ttft", "tpot", "e2el")
Slos = Mapping[str, float]
"""Most milliseconds of some of NAMES."""


def parse_slos(words: Sequence[str], flag: str) -> dict[str, float]:
    """`["ttft:500", "tpot:50"]` as limits in milliseconds.

    Raises:
        ConfigError: a word that is no limit, names no metric, or one that was named before.
    """
    slos: dict[str, float] = {}
    for word in words:
        name, colon, text = word.partition(":")
        if name not in NAMES:
            raise ConfigError(
                f"{flag} {word}: names no metric; give NAME:MILLISECONDS with one of "
                f"{', '.join(NAMES)}"
            )
        try:
            limit_ms = float(text)
        except ValueError:
            limit_ms = -1.0
        if not colon or not 0 <= limit_ms < math.inf:
            raise ConfigError(f"{flag} {word}: must be a number of milliseconds >= 0")
        if name in slos:
            raise ConfigError(f"{flag} {word}: {name} was given before")
        slos[name] = limit_ms
    return slos


def num_good(done: Sequence[RequestRecord], slos: Slos) -> int:
    """How many requests kept every limit; a request of one token has no TPOT, and keeps any."""
    return sum(_is_good(record, slos) for record in done)


def _is_good(record: RequestRecord, slos: Slos) -> bool:
    values = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2el": record.latency_s}
    return all((values[name] or 0.0) * 1e3 <= limit_ms for name, limit_ms in slos.items())
