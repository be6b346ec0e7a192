"""Finding backends by file name, asking each what it can do, and choosing one."""

from __future__ import annotations

import importlib
import logging
import math
import pkgutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import torch

from attention_backends._interface import AttentionBackend, AttentionShape, Support

log = logging.getLogger(__name__)

PACKAGE = "attention_backends"
DEFAULT_BLOCK_SIZE = 16


class BackendChoiceError(ValueError):
    """No such backend, or it cannot serve the model here; lists every backend's reason."""


class Choice(NamedTuple):
    """An able backend."""

    backend: type[AttentionBackend]
    support: Support
    block_size: int
    passed_over: dict[str, str]
    """Backends that `auto` preferred to this one -> why they cannot serve the model here."""


class _Plugin(NamedTuple):
    """A backend's file."""

    backend: type[AttentionBackend] | None
    reason: str
    """why there is none"""
    preference: int


class _Answer(NamedTuple):
    backend: type[AttentionBackend] | None
    support: Support
    block_size: int


def backend_names() -> list[str]:
    """Names of the backends, sorted; nothing is imported."""
    folder = str(Path(__file__).parent)
    return sorted(m.name for m in pkgutil.iter_modules([folder]) if not m.name.startswith("_"))


def examine_all(
    shapes: Sequence[AttentionShape], block_size: int | None, device: torch.device
) -> dict[str, Support]:
    """Every backend's answer for a model, the one that `auto` prefers first.

    Args:
        shapes: one per layer.
        block_size: tokens; None asks each backend with the size that it prefers.
    """
    answers = _ask_all(shapes, block_size, device)
    return {name: answer.support for name, answer in answers.items()}


def choose_backend(
    name: str,
    shapes: Sequence[AttentionShape],
    block_size: int | None,
    device: torch.device,
    *,
    key: str = "attention.backend",
) -> Choice:
    """The backend of that name, or for "auto" the most preferred one that is able.

    Args:
        shapes: one per layer.
        block_size: tokens; None takes what the backend prefers.
        key: of the configuration, for messages.

    Raises:
        BackendChoiceError: an unknown name (with a suggestion), or one that cannot serve the model
            here (with every backend's reason).
    """
    names = backend_names()
    if name != "auto" and name not in names:
        near = get_close_matches(name, [*names, "auto"], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        allowed = ", ".join(["auto", *names])
        raise BackendChoiceError(f"{key}: there is no backend {name!r}{hint} (allowed: {allowed})")
    if name != "auto":
        answer = _ask(_find(name, device), shapes, block_size, device)
        if answer.backend is not None and answer.support.ok:
            return Choice(answer.backend, answer.support, answer.block_size, {})
        raise BackendChoiceError(_refusal(key, name, _ask_all(shapes, block_size, device)))

    answers: dict[str, _Answer] = {}
    passed_over: dict[str, str] = {}
    # one at a time: beside the libraries that tell preferences, none is loaded that nobody will use
    for candidate, plugin in _by_preference(device).items():
        answer = answers[candidate] = _ask(plugin, shapes, block_size, device)
        if answer.backend is not None and answer.support.ok:
            log.info("attention backend: %s", candidate)
            if passed_over:
                level = logging.DEBUG if device.type == "cpu" else logging.INFO
                reasons = "; ".join(f"{other}: {why}" for other, why in passed_over.items())
                log.log(level, "attention backends passed over: %s", reasons)
            return Choice(answer.backend, answer.support, answer.block_size, passed_over)
        passed_over[candidate] = answer.support.reason
    raise BackendChoiceError(_refusal(key, name, answers))


def _ask_all(
    shapes: Sequence[AttentionShape], block_size: int | None, device: torch.device
) -> dict[str, _Answer]:
    plugins = _by_preference(device)
    return {name: _ask(plugin, shapes, block_size, device) for name, plugin in plugins.items()}


def _by_preference(device: torch.device) -> dict[str, _Plugin]:
    plugins = {name: _find(name, device) for name in backend_names()}
    return dict(sorted(plugins.items(), key=lambda item: -item[1].preference))


def _find(name: str, device: torch.device) -> _Plugin:
    try:
        backend = importlib.import_module(f"{PACKAGE}.{name}").Backend
    except Exception as error:  # a plug-in's import may fail in any way; it is then unable
        return _Plugin(None, f"cannot be imported: {type(error).__name__}: {error}", 0)
    try:
        return _Plugin(backend, "", backend.preference(device))
    except Exception as error:  # must not happen, and must not take the others down
        return _Plugin(None, f"preference failed: {type(error).__name__}: {error}", 0)


def _ask(
    plugin: _Plugin, shapes: Sequence[AttentionShape], block_size: int | None, device: torch.device
) -> _Answer:
    backend, reason, _ = plugin
    if backend is None:
        return _Answer(None, Support(False, reason), block_size or DEFAULT_BLOCK_SIZE)
    if block_size is not None:
        return _Answer(backend, examine_layers(backend, shapes, block_size, device), block_size)
    support = examine_layers(backend, shapes, DEFAULT_BLOCK_SIZE, device)
    preferred = support.preferred_block_size
    if preferred != DEFAULT_BLOCK_SIZE:
        support = examine_layers(backend, shapes, preferred, device)
    return _Answer(backend, support, preferred)


def examine_layers(
    backend: type[AttentionBackend],
    shapes: Sequence[AttentionShape],
    block_size: int,
    device: torch.device,
) -> Support:
    """One answer for all layers: able if it is for each shape, and then what all of them allow."""
    supports = []
    for shape in dict.fromkeys(shapes):
        try:
            support = backend.examine(shape, block_size, device)
        except Exception as error:  # must not happen, and must not take the others down
            return Support(False, f"examine failed: {type(error).__name__}: {error}")
        if not support.ok:
            return support
        supports.append(support)
    merged = Support(
        True,
        graph=min(s.graph for s in supports),
        block_size_multiple=math.lcm(*(s.block_size_multiple for s in supports)),
        preferred_block_size=max(s.preferred_block_size for s in supports),
        host_plan=any(s.host_plan for s in supports),
        bucketed_kv=any(s.bucketed_kv for s in supports),
    )
    if block_size % merged.block_size_multiple:
        return Support(
            False,
            f"a block size of {block_size} is not a multiple of {merged.block_size_multiple}",
            block_size_multiple=merged.block_size_multiple,
            preferred_block_size=merged.preferred_block_size,
        )
    return merged


def _refusal(key: str, name: str, answers: dict[str, _Answer]) -> str:
    lines = [f"{key}: {name} cannot serve this model here; every backend's answer:"]
    for candidate, answer in answers.items():
        support = answer.support
        verdict = f"able with block size {answer.block_size}" if support.ok else support.reason
        lines.append(f"  {candidate}: {verdict}")
    return "\n".join(lines)
