"""Folders of converted files on disk, keyed by content, each published whole or not at all.

Layout: <root>/gguf/<hash of the source file>/<child>, one child for each thing made from the file
(weights in one type, the tokenizer). A child is written to a temporary folder beside it, synced,
listed in a manifest, and renamed into place under a lock.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import xxhash
from filelock import FileLock

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError

CACHE_DIR_VARIABLE = "STEPGRAPH_CACHE_DIR"
_MANIFEST = "manifest.json"
_HASHED_BELOW_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)


def cache_root(config: ModelConfig) -> Path:
    """model.cache_dir, else the environment's, else ~/.cache/stepgraph; need not exist yet."""
    root = config.cache_dir or os.environ.get(CACHE_DIR_VARIABLE) or "~/.cache/stepgraph"
    return Path(root).expanduser()


def cache_folder_of(path: str | Path, config: ModelConfig) -> Path:
    """The folder of everything converted from this file; it need not exist yet.

    The key is the file's content, so a renamed or copied file finds its conversion, and a changed
    one never does.

    Raises:
        ModelError: the file cannot be read.
    """
    return cache_root(config) / "gguf" / _content_hash(Path(path))


def is_whole(folder: Path) -> bool:
    """Whether `folder` was published and each of its files still has the size that it had then.

    Files under 1 MiB are compared by hash as well.
    """
    try:
        listed = json.loads((folder / _MANIFEST).read_text())["files"]
        return bool(listed) and all(
            _describe(folder / name) == described for name, described in listed.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def publish_folder(target: Path, write: Callable[[Path], None], *, needed_bytes: int = 0) -> None:
    """Ensure that `target` is whole, calling `write(temporary folder)` if it is not yet.

    Safe under several processes: one writes, the others wait and then find it. What an interrupted
    process left behind is removed by the next.

    Args:
        target: the folder to publish, below a `cache_folder_of`.
        write: fills an empty folder with plain files; may raise OSError.
        needed_bytes: about what it will write; refused early where the disk has less.

    Raises:
        ConfigError: the place cannot be written.
        ModelError: the disk is full.
    """
    if is_whole(target):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if is_whole(target):
                return
            for stale in target.parent.glob(f".{target.name}.*"):
                shutil.rmtree(stale, ignore_errors=True)
            _check_space(target.parent, needed_bytes)
            _write_and_rename(target, write)
    except OSError as error:
        raise _explained(error, target) from error


def check_writable(target: Path, *, needed_bytes: int = 0) -> None:
    """What `publish_folder` would say of the place before it writes; nothing is left behind.

    Raises:
        ConfigError: the place cannot be written.
        ModelError: the disk has too little room.
    """
    try:
        there = next(folder for folder in target.parents if folder.exists())
        with tempfile.TemporaryFile(dir=there):
            _check_space(there, needed_bytes)
    except OSError as error:
        raise _explained(error, target) from error


def _write_and_rename(target: Path, write: Callable[[Path], None]) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write(temporary)
        files = {path.name: _describe(path) for path in sorted(temporary.iterdir())}
        (temporary / _MANIFEST).write_text(json.dumps({"files": files}, indent=1))
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _describe(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    if size >= _HASHED_BELOW_BYTES:
        return {"bytes": size}
    return {"bytes": size, "xxh3_64": xxhash.xxh3_64_hexdigest(path.read_bytes())}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ModelError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return xxhash.xxh3_128_hexdigest(content)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _check_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        mib = 1 << 20
        raise ModelError(
            f"not enough disk space to convert the model: {needed_bytes / mib:.0f} MiB are needed "
            f"in {folder}, {free / mib:.0f} MiB are free; {_remedy()}"
        )


def _explained(error: OSError, target: Path) -> ModelError | ConfigError:
    if error.errno in _FULL:
        return ModelError(
            f"the disk filled up while converting the model into {target.parent}; nothing of it "
            f"was kept; {_remedy()}"
        )
    if error.errno in _REFUSED:
        return ConfigError(
            f"cannot write the conversion cache {target.parent}: {error.strerror}; {_remedy()}"
        )
    return ModelError(f"cannot convert the model into {target.parent}: {error}")


def _remedy() -> str:
    return (
        f"name a folder that can hold it with the key model.cache_dir or the environment "
        f"variable {CACHE_DIR_VARIABLE}"
    )
