"""How many imports lie between files: read from import lines, nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def distances(changed: Iterable[str], sources: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """File -> (imports between it and the nearest changed file, that file).

    What Python does not parse imports nothing. Plug-ins, which are imported by name, are not seen.
    """
    paths = {module_of(path): path for path in sources}
    importers: dict[str, list[str]] = {}
    for path, text in sources.items():
        for module in _imported(text, paths):
            importers.setdefault(paths[module], []).append(path)
    found = {path: (0, path) for path in changed if path in sources}
    border = list(found)
    while border:
        reached = []
        for path in border:
            steps, origin = found[path]
            for importer in importers.get(path, ()):
                if importer not in found:
                    found[importer] = (steps + 1, origin)
                    reached.append(importer)
        border = reached
    return found


def _imported(text: str, modules: Iterable[str]) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return set()
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names | {node.module}
    return found & set(modules)
