"""Token buckets, graph keys, and the modes that capture and replay the forward.

A file here without a leading underscore is a mode; its name is its YAML name.
"""

from graphs._capture.report import CaptureRecord, CaptureReport
from graphs._dispatch.buckets import Buckets
from graphs._dispatch.dispatcher import Dispatcher, DispatchStats
from graphs._dispatch.plugins import choose_mode, choose_modes, load_mode, mode_names, refusals
from graphs._graph_set import GraphSet
from graphs._interface import GraphMode
from graphs._keys import Call, Case, Cut, GraphError, GraphKey, Kind, run_in_place
from graphs._options import GraphOptions

__all__ = [
    "Buckets",
    "Call",
    "CaptureRecord",
    "CaptureReport",
    "Case",
    "Cut",
    "DispatchStats",
    "Dispatcher",
    "GraphError",
    "GraphKey",
    "GraphMode",
    "GraphOptions",
    "GraphSet",
    "Kind",
    "choose_mode",
    "choose_modes",
    "load_mode",
    "mode_names",
    "refusals",
    "run_in_place",
]
