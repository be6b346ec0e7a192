"""What a configuration and this machine tell before any file of the model is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import TypeVar

import torch

from attention_backends import backend_names
from graphs import mode_names
from runtime.config import RuntimeConfig
from runtime.config.problems import error_of_lines
from runtime.errors import ConfigError
from runtime.machine.threads import StepThreads, threads_of
from runtime.observe.trace import check_trace_path

_T = TypeVar("_T")


def check_early(config: RuntimeConfig) -> tuple[torch.device, StepThreads]:
    """The device and the threads of a step.

    Raises:
        ConfigError: everything that is wrong with names of plug-ins, the device, the threads, the
        place of a trace.
    """
    wrong = list(_unknown_names(config))
    device = _noted(wrong, lambda: choose_device(config.engine.device))
    threads = _noted(wrong, lambda: threads_of(config.engine))
    trace = config.observe.trace
    if trace is not None:
        _noted(wrong, lambda: check_trace_path(trace))
    if wrong or device is None or threads is None:
        raise error_of_lines(wrong)
    return device, threads


def choose_device(wanted: str) -> torch.device:
    """The device of `engine.device`; auto is CUDA where there is one.

    Raises:
        ConfigError: CUDA asked for where there is none.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        why = "this torch is a CPU build" if torch.version.cuda is None else "no device was found"
        raise ConfigError(f"engine.device: cuda was asked for, but {why}; allowed here: auto, cpu")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def _noted(wrong: list[str], settle: Callable[[], _T]) -> _T | None:
    try:
        return settle()
    except ConfigError as error:
        wrong.append(str(error))
        return None


def _unknown_names(config: RuntimeConfig) -> Iterator[str]:
    attention, graphs = config.attention, config.graphs
    backends, modes = ["auto", *backend_names()], ["auto", *mode_names()]
    for key, name, known in (
        ("attention.backend", attention.backend, backends),
        ("attention.prefill_backend", attention.prefill_backend, backends),
        ("attention.decode_backend", attention.decode_backend, backends),
        ("graphs.decode", graphs.decode, modes),
        ("graphs.mixed", graphs.mixed, modes),
    ):
        if name is not None and name not in known:
            yield _unknown(key, name, known)


def _unknown(key: str, name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f'{key}: must be one of {", ".join(known)}, got "{name}"{hint}'
