"""Graph modes by file name: what there is, and which one serves a case here."""

from __future__ import annotations

import difflib
import importlib
import logging
import pkgutil

import torch

import graphs
from attention_backends import GraphSupport, Support
from graphs._interface import GraphMode
from graphs._keys import Case, GraphError, Kind

logger = logging.getLogger(__name__)


def mode_names() -> list[str]:
    """Every mode's YAML name: the files of this package without a leading underscore."""
    return sorted(m.name for m in pkgutil.iter_modules(graphs.__path__) if m.name[0] != "_")


def load_mode(name: str) -> type[GraphMode]:
    """The class of a mode; its file is imported here.

    Raises:
        GraphError: there is no such mode; suggests close names and lists all.
    """
    names = mode_names()
    if name not in names:
        close = difflib.get_close_matches(name, [*names, "auto"], n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise GraphError(f"no graph mode {name!r}{hint} (allowed: auto, {', '.join(names)})")
    mode: type[GraphMode] = importlib.import_module(f"graphs.{name}").Mode
    return mode


def refusals(case: Case, support: Support, device: torch.device) -> dict[str, str]:
    """Each mode's reason against serving the case here; "" where it can."""
    return {name: load_mode(name).examine(case, support, device) for name in mode_names()}


def choose_mode(
    name: str, case: Case | str, support: Support, device: torch.device
) -> type[GraphMode]:
    """The mode that the configuration names, or for `auto` the best one here.

    Args:
        name: value of `graphs.decode` or `graphs.mixed`.
        case: which of the two.
        support: the attention backend's.
        device: where the model runs.

    Raises:
        GraphError: no such mode, or it cannot serve the case here; lists every mode's reason.
    """
    case = Case(case)
    if name == "auto":
        name = _best(case, support, device)
        level = logging.DEBUG if device.type == "cpu" else logging.INFO
        logger.log(level, "graphs.%s: auto is %s", case.value, name)
    try:
        mode = load_mode(name)
    except GraphError as error:
        raise GraphError(f"graphs.{case.value}: {error}") from None
    reason = mode.examine(case, support, device)
    if reason:
        every = "".join(
            f"\n  {other}: {why or 'able'}"
            for other, why in refusals(case, support, device).items()
        )
        raise GraphError(f"graphs.{case.value}: {name} cannot be used: {reason}. Modes:{every}")
    return mode


def choose_modes(
    decode: str, mixed: str, support: Support, device: torch.device
) -> tuple[type[GraphMode], type[GraphMode]]:
    """The modes of both cases; they can be had together.

    Args:
        decode: value of `graphs.decode`.
        mixed: value of `graphs.mixed`.

    Raises:
        GraphError: what is wrong with either, or that both give the same kind of graph.
    """
    chosen, wrong = [], []
    for case, name in ((Case.DECODE, decode), (Case.MIXED, mixed)):
        try:
            chosen.append(choose_mode(name, case, support, device))
        except GraphError as error:
            wrong.append(str(error))
    if wrong:
        raise GraphError("\n".join(wrong))
    first, second = chosen
    if first is not second and first.kind_of_decode is second.kind_of_mixed is not Kind.EAGER:
        raise GraphError(
            f"graphs.decode: {first.name} and graphs.mixed: {second.name} both give "
            f"{second.kind_of_mixed.value} graphs; name one of them for both, or another mode"
        )
    return first, second


def _best(case: Case, support: Support, device: torch.device) -> str:
    if device.type != "cuda":
        # with bucketed_kv a list makes short requests as slow as long ones
        if case is Case.MIXED or support.bucketed_kv:
            return "eager"
        return "eager" if load_mode("recorded").examine(case, support, device) else "recorded"
    if case is Case.DECODE and support.graph >= GraphSupport.ONE_TOKEN:
        return "full"
    return "segmented"
