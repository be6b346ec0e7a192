"""Which backends and graph modes can be tried here."""

from __future__ import annotations

from collections.abc import Sequence

from attention_backends import (
    AttentionBackend,
    AttentionShape,
    BackendChoiceError,
    backend_names,
    choose_backend,
    examine_all,
    examine_layers,
)
from graphs import Case, GraphError, choose_mode
from runtime.models import LoadedModel
from tools._gpu_check.report import Report
from tools._gpu_check.scale import Scale


def able_backends(
    shapes: Sequence[AttentionShape], scale: Scale, section: str, report: Report
) -> list[tuple[str, type[AttentionBackend], int]]:
    """(name, class, block size) of every backend that serves the shapes here, a line for others."""
    able = []
    for name in backend_names():
        if scale.backends is not None and name not in scale.backends:
            continue
        try:
            choice = choose_backend(name, shapes, None, scale.device)
        except BackendChoiceError:
            reasons = examine_all(shapes, None, scale.device)
            report.skip(section, name, reasons[name].reason)
            continue
        able.append((name, choice.backend, choice.block_size))
    return sorted(able, key=lambda entry: -entry[1].preference(scale.device))


def refusal_of(
    decode: str,
    mixed: str,
    loaded: LoadedModel,
    backend: type[AttentionBackend],
    block_size: int,
) -> str:
    """Why the modes cannot serve the model with this backend; "" where they can."""
    support = examine_layers(backend, loaded.attention_shapes, block_size, loaded.device)
    try:
        choose_mode(decode, Case.DECODE, support, loaded.device)
        choose_mode(mixed, Case.MIXED, support, loaded.device)
    except GraphError as error:
        return str(error)
    return ""
