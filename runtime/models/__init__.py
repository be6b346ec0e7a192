"""Models: described cheaply (`read_spec`, no torch), or built and filled (`load_model`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.models._spec import ModelSpec, smaller_weights
from runtime.models._weight_map import weight_bytes

if TYPE_CHECKING:
    from runtime.models._linear_paths import check_linear_path, matrix_inputs
    from runtime.models._load import check_files, load_model, read_spec
    from runtime.models._loaded import LoadedModel, attention_shapes

__all__ = [
    "LoadedModel",
    "ModelSpec",
    "attention_shapes",
    "check_files",
    "check_linear_path",
    "load_model",
    "matrix_inputs",
    "read_spec",
    "smaller_weights",
    "weight_bytes",
]

_HOMES = {
    "LoadedModel": "_loaded",
    "attention_shapes": "_loaded",
    "check_files": "_load",
    "check_linear_path": "_linear_paths",
    "load_model": "_load",
    "matrix_inputs": "_linear_paths",
    "read_spec": "_load",
}


def __getattr__(name: str) -> Any:
    """Import torch, or what reads configurations, only for those who ask for a name that needs
    it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
