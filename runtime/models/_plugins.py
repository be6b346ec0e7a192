"""Finding the file that serves an architecture, without importing the others.

A file of this package without a leading underscore is a plug-in. Its `ARCHITECTURES` and `TRAITS`
are literals, read from its source; the file itself (and torch with it) is imported only to build a
model.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from runtime.errors import ModelError


@dataclass(frozen=True, slots=True)
class ModelPlugin:
    """What a model file declares.

    Traits and their values (absent is False or none):
        qkv_bias, o_bias, mlp_bias: True, or the name of the config key that decides.
        qk_norm: True where each q and k head is normed before the rotation.
        head_dim: what an absent head_dim means; else hidden_size / num_attention_heads.
        window: "all_layers" (sliding_window on each layer) or "layer_types" (use_sliding_window,
            max_window_layers, layer_types).
        defaults: values of config keys that a checkpoint may leave out.
    """

    module: str
    architectures: tuple[str, ...]
    traits: Mapping[str, Any] = field(default_factory=dict)

    def model_class(self) -> Any:
        """Import the file and return its `Model`."""
        return importlib.import_module(f"{__package__}.{self.module}").Model


def find_plugin(architecture: str, where: str) -> ModelPlugin:
    """The plug-in that serves an architecture.

    Args:
        architecture: as in a config's `architectures`.
        where: the file that names it, for the message.

    Raises:
        ModelError: no file serves it.
    """
    plugins = discover(Path(__file__).parent)
    for plugin in plugins:
        if architecture in plugin.architectures:
            return plugin
    known = sorted(name for plugin in plugins for name in plugin.architectures)
    raise ModelError(
        f"{where}: unsupported architecture {architecture!r}; supported: {', '.join(known)}"
    )


@cache
def discover(folder: Path) -> tuple[ModelPlugin, ...]:
    """Every plug-in of the folder, in the order of file names."""
    return tuple(
        _declared(path) for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")
    )


def _declared(path: Path) -> ModelPlugin:
    literals = {}
    for node in ast.parse(path.read_text(), str(path)).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("ARCHITECTURES", "TRAITS"):
                literals[name] = ast.literal_eval(node.value)
    return ModelPlugin(path.stem, tuple(literals["ARCHITECTURES"]), literals.get("TRAITS", {}))
