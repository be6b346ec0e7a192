"""Read the signatures of the attention libraries from their published sources.

The adapters of `attention_backends/` call functions that cannot be imported without a GPU. This
script downloads each package from the package registry, reads (never imports) the Python files
that define those functions, and writes their signatures to a JSON file that the unit tests bind
our calls against. `--check` compares with the file instead of writing it.

    python tools/kernel_signatures.py [--check] [--downloads DIR]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OUTPUT = Path(__file__).parents[1] / "tests/unit/attention_backends/signatures.json"


class Package(NamedTuple):
    """A distribution on the registry and the functions to read."""

    name: str
    version: str
    is_source: bool
    functions: dict[str, tuple[str, ...]]
    """end of a file's path -> dotted names in it"""


PACKAGES = (
    Package(
        "flash-attn",
        "2.8.3.post2",
        True,
        {
            "/flash_attn/flash_attn_interface.py": (
                "flash_attn_with_kvcache",
                "flash_attn_varlen_func",
            ),
            "/hopper/flash_attn_interface.py": ("flash_attn_with_kvcache",),
        },
    ),
    Package(
        "tokenspeed-fa3",
        "3.0.0.post20260810",
        False,
        {"flash_attn_interface.py": ("flash_attn_with_kvcache",)},
    ),
    Package(
        "flashinfer-python",
        "0.7.2.post1",
        False,
        {
            "flashinfer/prefill.py": tuple(
                f"BatchPrefillWithPagedKVCacheWrapper.{name}"
                for name in ("__init__", "plan", "run", "reset_workspace_buffer")
            ),
            "flashinfer/decode.py": tuple(
                f"BatchDecodeWithPagedKVCacheWrapper.{name}"
                for name in (
                    "__init__",
                    "plan",
                    "_plan_impl",
                    "run",
                    "workspace_size",
                    "reset_workspace_buffer",
                )
            ),
        },
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and fail if they differ")
    parser.add_argument("--downloads", type=Path, help="keep and reuse the archives here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = read_all(args.downloads or Path(folder))
    text = json.dumps(found, indent=1) + "\n"
    if not args.check:
        OUTPUT.write_text(text)
        return 0
    if text == OUTPUT.read_text():
        return 0
    print(f"{OUTPUT} differs from the packages: run this without --check", file=sys.stderr)
    return 1


def read_all(downloads: Path) -> dict[str, dict[str, object]]:
    """Package name -> version, archive, sha256, and file -> function -> parameters as source."""
    found: dict[str, dict[str, object]] = {}
    for package in PACKAGES:
        archive = download(package, downloads)
        found[package.name] = {
            "version": package.version,
            "archive": archive.name,
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "files": {
                ending: {name: parameters(tree, name) for name in package.functions[ending]}
                for ending, tree in parse_files(archive, package)
            },
        }
    return found


def download(package: Package, folder: Path) -> Path:
    """The package's archive, by pip; nothing of it is built or installed.

    Raises:
        subprocess.CalledProcessError: the registry cannot be reached or lacks the version.
    """
    stem = f"{package.name.replace('-', '_')}-{package.version}"
    if not list(folder.glob(f"{stem}*")):
        options = ["--no-deps", "--dest", str(folder), "--no-build-isolation"]
        options += (
            ["--no-binary", ":all:"]
            if package.is_source
            else ["--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64"]
        )
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options]
        subprocess.run(
            [*command, f"{package.name}=={package.version}"],
            check=True,
            # pip asks a source archive for its metadata; without this it looks for a compiler
            env={**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"},
        )
    return next(folder.glob(f"{stem}*"))


def parse_files(archive: Path, package: Package) -> Iterator[tuple[str, ast.Module]]:
    """(ending, syntax tree) of each file that the package names.

    Raises:
        KeyError: the archive has no such file.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            for ending in package.functions:
                yield ending, ast.parse(wheel.read(ending))
        return
    with tarfile.open(archive) as source:
        for ending in package.functions:
            name = f"{archive.name.removesuffix('.tar.gz')}{ending}"
            file = source.extractfile(name)
            assert file is not None
            yield ending, ast.parse(file.read())


def parameters(tree: ast.Module, dotted: str) -> str:
    """Parameters of the last definition of that name: the earlier ones are typing overloads.

    Raises:
        KeyError: there is none.
    """
    scope: list[ast.stmt] = tree.body
    node: ast.stmt | None = None
    for part in dotted.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        named = [n for n in scope if isinstance(n, kinds) and n.name == part]
        if not named:
            raise KeyError(dotted)
        node = named[-1]
        scope = node.body
    assert isinstance(node, ast.FunctionDef)
    for arg in ast.walk(node.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return ast.unparse(node.args)


if __name__ == "__main__":
    sys.exit(main())
