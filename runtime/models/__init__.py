"""Models: described cheaply (`read_spec`, no torch), or built and filled (`load_model`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.models._load import load_model, read_spec
from runtime.models._spec import ModelSpec

if TYPE_CHECKING:
    from runtime.models._loaded import LoadedModel, attention_shapes

__all__ = ["LoadedModel", "ModelSpec", "attention_shapes", "load_model", "read_spec"]


def __getattr__(name: str) -> Any:
    """Import torch only for those who ask for a name that needs it."""
    if name in ("LoadedModel", "attention_shapes"):
        from runtime.models import _loaded

        return getattr(_loaded, name)
    raise AttributeError(name)
