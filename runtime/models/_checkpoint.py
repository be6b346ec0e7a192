"""Reading a Hugging Face folder: parsed JSON files, and tensors through safetensors' mmap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from runtime.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_HEADER_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Checkpoint:
    """The tensors of a folder, opened when asked for.

    The names are those of model.safetensors, or those that the index assigns to a file; any other
    file of the folder, and any tensor that a file holds beside its assigned ones, does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        single, index = folder / SINGLE_FILE, folder / INDEX_FILE
        self._open: dict[str, Any] = {}
        if single.is_file():
            names = self._file(SINGLE_FILE).keys()
            self._file_of = dict.fromkeys(names, SINGLE_FILE)
        elif index.is_file():
            self._file_of = _read_index(index)
        else:
            raise ModelError(_no_weights(folder))

    @property
    def names(self) -> list[str]:
        """Every tensor's name."""
        return list(self._file_of)

    def tensor(self, name: str) -> Tensor:
        """The tensor, backed by the mapped file.

        Raises:
            ModelError: no such tensor, or its file is missing or damaged.
        """
        file_name = self._file_of.get(name)
        if file_name is None:
            raise ModelError(f"{self.folder}: the checkpoint has no tensor {name}")
        try:
            return self._file(file_name).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self.folder / file_name}: cannot read {name}: {error}") from error

    def check_files(self) -> None:
        """Open every file: the library compares its size with its header.

        Raises:
            ModelError: one is missing, damaged or cut short.
        """
        for name in dict.fromkeys(self._file_of.values()):
            self._file(name)

    def dtype(self) -> str:
        """The type of the first tensor, by the runtime's name, else by safetensors'."""
        name, file_name = next(iter(self._file_of.items()))
        stored = self._file(file_name).get_slice(name).get_dtype()
        return _HEADER_DTYPES.get(stored, stored)

    def _file(self, name: str) -> Any:
        if name not in self._open:
            path = self.folder / name
            try:
                self._open[name] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ModelError(f"{path} is missing; {INDEX_FILE} assigns tensors to it") from None
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} is not a whole safetensors file ({error}); download or copy it again"
                ) from error
        return self._open[name]


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object from a file; {} where an optional file is absent.

    Raises:
        ModelError: absent, unreadable, or not a JSON object.
    """
    if not required and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing; model.path must be a Hugging Face folder with a config.json, or "
            "a .gguf file"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def _read_index(path: Path) -> dict[str, str]:
    files: Mapping[str, Any] | None = read_json(path).get("weight_map")
    valid = isinstance(files, Mapping) and all(
        isinstance(name, str) and Path(name).name == name for name in files.values()
    )
    if not valid or not files:
        raise ModelError(f"{path}: weight_map must assign tensors to files of the same folder")
    return dict(files)


def _no_weights(folder: Path) -> str:
    others = sorted(
        path.name
        for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth")
        for path in folder.glob(pattern)
    )
    found = f"; found only {', '.join(others[:4])}" if others else ""
    return f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{found}"
