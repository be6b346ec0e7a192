"""What each key that is there to find faults would do here, for `check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphs import GraphMode, Kind

if TYPE_CHECKING:
    from runtime.config import RunConfig


def debug_facts(
    config: RunConfig, decode: type[GraphMode], mixed: type[GraphMode], no_kernels: str
) -> Iterator[tuple[str, str]]:
    """(key, what it does or would do, or why it has no effect).

    Args:
        no_kernels: why native kernels do not multiply here; empty where they do.
    """
    modes = f"graphs.decode is {decode.name}, graphs.mixed is {mixed.name}"
    no_replay = "" if _replays(decode) or _replays(mixed) else f"no step is replayed ({modes})"
    no_padding = "" if _pads(config, decode, mixed) else f"no step is padded ({modes})"
    engine, graphs, path = config.engine, config.graphs, config.model.linear_path
    for key, is_on, effect, reason in (
        ("engine.check_integrity", engine.check_integrity, "checks every step", ""),
        ("engine.padding_canary", engine.padding_canary, "checks every padded step", no_padding),
        ("graphs.check_addresses", graphs.check_addresses, "checks every replay", no_replay),
        ("graphs.compare_every", graphs.compare_every > 0, "runs replays eagerly too", no_replay),
        ("model.linear_path", path != "auto", "takes another path than the fastest", no_kernels),
    ):
        state = "on" if is_on else "off"
        yield key, f"{state}; no effect here: {reason}" if reason else f"{state}; {effect}"


def _replays(mode: type[GraphMode]) -> bool:
    return mode.captures or mode.captures_at_use > 0


def _pads(config: RunConfig, decode: type[GraphMode], mixed: type[GraphMode]) -> bool:
    """Whether any bucket of either kind may be larger than its step."""
    decode_pads = decode.pads_decode or config.graphs.sizes != "auto"
    return mixed.kind_of_mixed is not Kind.EAGER or (
        decode.kind_of_decode is not Kind.EAGER and decode_pads
    )
