"""load_tokenizer: from where a model's configuration points to, fast from the second start on.

transformers knows how a folder's tokenizer is to be read, and takes seconds to import. It is asked
once for each content; a GGUF file's is built here. What came of the files is kept in the cache
folder, in the form that the `tokenizers` library opens alone.
"""

from __future__ import annotations

import json
import logging
import mmap
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import tokenizers
import xxhash

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.machine.disk_cache import cache_root, is_whole, publish_folder
from runtime.text.tokenizer import Tokenizer, TokenizerSettings

log = logging.getLogger(__name__)

_SUPPORTED = (
    "supported: a folder with tokenizer.json, tokenizer.model, tekken.json, or vocab.json and "
    "merges.txt; or a .gguf file that holds a tokenizer"
)
_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt")
_FORMAT = "1"
"""Of what is kept; a new one makes old entries unread."""
_GGUF_FORMAT = "gguf 2"
"""Of the rules that a GGUF file is read by; raise it when they give another tokenizer."""
_GGUF_HEAD_BYTES = 64 * 2**20
"""The metadata, tokenizer included, lies at the start of a GGUF file."""


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """The tokenizer of `model.tokenizer`, else the one beside the model.

    Returns:
        None where the model's folder holds no tokenizer and none is named: token ids only.

    Raises:
        ModelError: a tokenizer that is named but missing, corrupt, or of an unsupported kind.
    """
    source = _find_source(config)
    if source is None:
        return None
    kept = cache_root(config) / "tokenizers" / _key_of(source)
    if is_whole(kept):
        try:
            return _read(kept)
        except Exception as error:  # what the tokenizers library raises has no narrower type
            log.warning("the kept tokenizer %s is damaged (%s) and made anew", kept, error)
            shutil.rmtree(kept)
    backend, settings = _from_gguf(source) if source.is_file() else _convert(source)
    tokenizer = Tokenizer(backend, settings)
    _keep(kept, backend, settings)
    return tokenizer


def _find_source(config: ModelConfig) -> Path | None:
    key = "model.tokenizer" if config.tokenizer else "model.path"
    path = Path(config.tokenizer or config.path)
    if path.is_file() and path.suffix != ".gguf":
        path = path.parent  # a config.json or tokenizer.json: its folder counts
    if not path.exists():
        raise ModelError(f"{key}: {path} does not exist; {_SUPPORTED}")
    if path.is_file() or any(_vocabulary_files(path)):
        return path
    if config.tokenizer:
        raise ModelError(f"{key}: {path} holds no tokenizer; {_SUPPORTED}")
    log.warning("%s holds no tokenizer: only token ids can be served; %s", path, _SUPPORTED)
    return None


def _vocabulary_files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in _VOCABULARY_FILES if (folder / name).is_file())
    yield from folder.glob("*.tiktoken")


# -- what is made of the files ---------------------------------------------------------------------


def _from_gguf(source: Path) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    from runtime.text.gguf_tokenizer import gguf_tokenizer  # not needed where it is kept

    try:
        return gguf_tokenizer(source)
    except Exception as error:  # what the tokenizers library raises has no narrower type
        raise _unreadable(source, error) from error


def _convert(source: Path) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    from transformers import AutoTokenizer  # slow to import: here only

    try:
        made = AutoTokenizer.from_pretrained(
            str(source), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever its parsers raise
        raise _unreadable(source, error) from error
    if getattr(made, "backend_tokenizer", None) is None:
        raise ModelError(
            f"the tokenizer of {source} is a {type(made).__name__}, which has no form for the "
            f"tokenizers library; {_SUPPORTED}"
        )
    settings = TokenizerSettings(
        special_tokens={name: str(text) for name, text in made.special_tokens_map.items()},
        chat_template=made.chat_template or None,
        split_special_tokens=bool(made.split_special_tokens),
    )
    return made.backend_tokenizer, settings


def _unreadable(source: Path, error: object) -> ModelError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ModelError(f"the tokenizer of {source} cannot be read: {reason:.500}; {_SUPPORTED}")


# -- what is kept ---------------------------------------------------------------------------------


def _key_of(source: Path) -> str:
    digest = xxhash.xxh3_128()
    made_by = _GGUF_FORMAT if source.is_file() else version("transformers")
    for part in (_FORMAT, made_by, version("tokenizers")):
        digest.update(part.encode() + b"\0")
    if source.is_file():
        if not source.stat().st_size:
            raise _unreadable(source, "it is empty")
        with (
            source.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content)[:_GGUF_HEAD_BYTES] as head,
        ):
            digest.update(f"{len(content)}\0".encode())
            digest.update(head)
    else:
        for path in _files_that_count(source):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(source)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _files_that_count(folder: Path) -> list[Path]:
    """Everything that may change a tokenizer; config.json too, since it names the class."""
    suffixes = (".json", ".txt", ".model", ".jinja", ".tiktoken")
    found = [p for p in folder.iterdir() if p.suffix in suffixes and p.is_file()]
    found += folder.glob("additional_chat_templates/*.jinja")
    return sorted(p for p in found if not p.name.endswith(".index.json"))


def _read(kept: Path) -> Tokenizer:
    settings = TokenizerSettings(**json.loads((kept / "settings.json").read_text("utf-8")))
    return Tokenizer(tokenizers.Tokenizer.from_file(str(kept / "tokenizer.json")), settings)


def _keep(kept: Path, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    def write(folder: Path) -> None:
        folder.joinpath("tokenizer.json").write_text(backend.to_str(), "utf-8")
        folder.joinpath("settings.json").write_text(json.dumps(asdict(settings)), "utf-8")

    try:
        publish_folder(kept, write)
    except (ConfigError, ModelError) as error:
        log.warning("the tokenizer must be converted at every start: %s", error)
