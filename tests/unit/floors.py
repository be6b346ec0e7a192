"""Reads import lines and says which of them break the floors of the house.

Imports go down. On one floor they stay inside a room, except where `NEIGHBOURS` says otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PACKAGES = ("runtime", "attention_backends", "graphs")

FLOORS: dict[str, int] = {
    "attention_backends": 0,
    "runtime.errors": 0,
    "runtime.data": 0,
    "runtime.machine": 0,
    "runtime.config": 0,
    "runtime.observe": 0,
    "graphs": 1,
    "runtime.kv_cache": 1,
    "runtime.models": 1,
    "runtime.ops": 1,
    "runtime.sampling": 1,
    "runtime.text": 1,
    "runtime.scheduler": 2,
    "runtime.runner": 2,
    "runtime.engine": 3,
    "runtime.front": 4,
    "runtime": 5,
    "runtime.cli": 5,
    "runtime.workbench": 5,
    "runtime.server": 5,
    "runtime.__main__": 5,
}
NEIGHBOURS = {
    ("runtime.models", "runtime.ops"),
    ("runtime.sampling", "runtime.ops"),
    ("runtime.machine", "attention_backends"),
}
TORCH_FREE = {
    *("runtime.errors", "runtime.data", "runtime.config", "runtime.observe"),
    *("runtime.kv_cache", "runtime.scheduler"),
}
KERNEL_LIBRARIES = {"flash_attn", "flashinfer", "triton"}
LIBRARIES = KERNEL_LIBRARIES | {
    *("torch", "numpy", "transformers", "tokenizers", "safetensors", "gguf", "pydantic", "rich"),
    *("ruamel", "xxhash", "jinja2", "psutil", "filelock", "huggingface_hub", "xgrammar", "msgspec"),
    "matplotlib",
    *("starlette", "uvicorn", "prometheus_client"),
}


class Import(NamedTuple):
    module: str
    names: tuple[str, ...]
    line: int
    is_deferred: bool
    """Inside a function: it happens when that runs."""


def violations(sources: Mapping[str, str]) -> list[str]:
    """What is wrong, a line each; `sources` maps paths to their text."""
    return [message for path in sorted(sources) for message in _of_file(path, sources[path])]


def room_of(module: str) -> str:
    """`runtime.kv_cache.block_pool` -> `runtime.kv_cache`; other packages are one room each."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "runtime" else parts[0]


def imports_of(source: str) -> Iterator[Import]:
    """Every import, those inside functions and under TYPE_CHECKING too."""

    def walk(node: ast.AST, is_deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, (), child.lineno, is_deferred)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                yield Import(
                    "." * child.level + (child.module or ""), names, child.lineno, is_deferred
                )
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, is_deferred or is_function)

    return walk(ast.parse(source), False)


def _of_file(path: str, source: str) -> Iterator[str]:
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room, stem = room_of(module), path.rpartition("/")[2].removesuffix(".py")
    if room not in FLOORS:
        yield f"{path}: {room} has no floor"
        return
    if stem in LIBRARIES:
        yield f"{path}: bears the name of a library"
    for found in imports_of(source):
        for reason in _of_import(room, path, found):
            yield f"{path}:{found.line}: {reason}"


def _of_import(room: str, path: str, found: Import) -> Iterator[str]:
    top = found.module.split(".")[0]
    if not top:
        yield "imports are absolute"
    elif top in ("tools", "tests"):
        yield f"imports {top}"
    elif top == "torch" and room in TORCH_FREE:
        yield "imports torch above the wall"
    elif top in KERNEL_LIBRARIES:
        yield from _of_kernel_library(room, path, found)
    elif top in PACKAGES:
        for target in _targets(found):
            yield from _of_ours(room, target, found.module)


def _of_kernel_library(room: str, path: str, found: Import) -> Iterator[str]:
    if room not in ("attention_backends", "runtime.ops"):
        yield f"imports {found.module} outside of a backend or op"
    elif not found.is_deferred and not path.rpartition("/")[2].startswith("_"):
        yield f"imports {found.module} at import, not at construction"


def _targets(found: Import) -> set[str]:
    """Rooms that the import reaches; `from runtime import data` reaches runtime.data."""
    if found.module != "runtime":
        return {room_of(found.module)}
    rooms = {
        f"runtime.{name}" if f"runtime.{name}" in FLOORS else "runtime" for name in found.names
    }
    return rooms or {"runtime"}


def _of_ours(room: str, target: str, module: str) -> Iterator[str]:
    if target not in FLOORS:
        yield f"{target} has no floor"
        return
    if room == target:
        return
    here, there = FLOORS[room], FLOORS[target]
    one_house = room.startswith("runtime") and target.startswith("runtime")
    if target.startswith("runtime") and not room.startswith("runtime"):
        yield f"imports the runtime: {room} -> {target}"
    elif target == "runtime" and FLOORS[room] < FLOORS[target]:
        yield "imports the public front of the runtime from inside"
    elif (room, target) == ("runtime.server", "runtime.cli"):
        yield "imports the command line from the server"
    elif there > here:
        yield f"imports up: {room} (floor {here}) -> {target} (floor {there})"
    elif there == here and not (one_house and here in (0, 5)) and (room, target) not in NEIGHBOURS:
        yield f"imports across floor {here}: {room} -> {target}"
    elif room in TORCH_FREE and target not in TORCH_FREE:
        yield f"imports {target}, which needs torch, above the wall"
    if not one_house and any(part.startswith("_") for part in module.split(".")):
        yield f"imports {module}, which is private to its package"


def circles(sources: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of files that import each other, those under TYPE_CHECKING too."""
    modules = {p.removesuffix(".py").replace("/", "."): source for p, source in sources.items()}
    reached = {
        module: {t for found in imports_of(source) for t in _files(found) if t in modules}
        for module, source in modules.items()
    }
    return sorted((a, b) for a, ends in reached.items() for b in ends if a < b and a in reached[b])


def _files(found: Import) -> Iterator[str]:
    yield found.module
    yield from (f"{found.module}.{name}" for name in found.names)
