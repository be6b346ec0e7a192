"""Token buckets, graph keys, and the modes that capture and replay the forward.

A file here without a leading underscore is a mode; its name is its YAML name.
"""

from graphs._buckets import Buckets
from graphs._dispatcher import Dispatcher, DispatchStats
from graphs._interface import (
    Call,
    Case,
    Cut,
    GraphError,
    GraphKey,
    GraphMode,
    Kind,
    run_in_place,
)
from graphs._plugins import choose_mode, load_mode, mode_names

__all__ = [
    "Buckets",
    "Call",
    "Case",
    "Cut",
    "DispatchStats",
    "Dispatcher",
    "GraphError",
    "GraphKey",
    "GraphMode",
    "Kind",
    "choose_mode",
    "load_mode",
    "mode_names",
    "run_in_place",
]
