"""From a ModelConfig to a described, or a built and filled, model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.config.schema import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.models._checkpoint import Checkpoint, read_json
from runtime.models._config import check_dtype, config_dtype, spec_from_config
from runtime.models._gguf_config import gguf_config
from runtime.models._gguf_header import read_header
from runtime.models._spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from runtime.models._loaded import LoadedModel

GGUF_DTYPE = "bfloat16"
"""What `auto` means for a GGUF file, whose own types are not computed in."""


class _Source(NamedTuple):
    kind: str
    path: Path
    """Folder (hf), file (gguf) or config.json (dummy)."""


def read_spec(config: ModelConfig) -> ModelSpec:
    """Describe the model; reads headers only, and imports no torch.

    Raises:
        ModelError: missing, corrupt or unsupported.
        ConfigError: model.path, model.format or model.max_model_len cannot be met.
    """
    return _spec_of(_locate(config), config)


def load_model(
    config: ModelConfig, device: torch.device, spec: ModelSpec | None = None
) -> LoadedModel:
    """Build the model on the device and fill it.

    Args:
        spec: what `read_spec` gave for the config, where it has been read already.

    Raises:
        ModelError: missing, corrupt or unsupported.
        ConfigError: model.path, model.format, model.max_model_len or model.cache_dir cannot be met.
    """
    from runtime.models._loaded import build
    from runtime.models._weights import fill_at_random, fill_from_checkpoint

    source = _locate(config)
    spec = spec or _spec_of(source, config)
    if source.kind == "dummy":
        return build(spec, device, lambda model: fill_at_random(model, config.seed))
    folder = source.path
    if source.kind == "gguf":
        from runtime.models._gguf_convert import converted_folder

        folder = converted_folder(source.path, config, spec)
    checkpoint = Checkpoint(folder)
    return build(spec, device, lambda model: fill_from_checkpoint(model, checkpoint))


def check_files(config: ModelConfig, spec: ModelSpec) -> None:
    """What `load_model` would refuse of the files, as far as headers and sizes tell.

    Raises:
        ModelError: a file of weights is missing, damaged or cut short.
        ConfigError: the cache of converted weights cannot be written, and must be.
    """
    source = _locate(config)
    if source.kind == "hf":
        Checkpoint(source.path).check_files()
    elif source.kind == "gguf":
        from runtime.models._gguf_convert import check_conversion

        check_conversion(source.path, config, spec)


def _locate(config: ModelConfig) -> _Source:
    path = Path(config.path).expanduser()
    if not path.exists():
        raise ModelError(f"model.path: {path} does not exist")
    if config.format == "dummy":
        return _Source("dummy", path / "config.json" if path.is_dir() else path)
    kind = "hf" if path.is_dir() else "gguf"
    if config.format not in ("auto", kind):
        expected = "a folder" if config.format == "hf" else "a .gguf file"
        raise ConfigError(
            f"model.format is {config.format}, so model.path must be {expected}: {path}"
        )
    if kind == "gguf" and path.suffix != ".gguf":
        raise ModelError(
            f"model.path: {path} is neither a folder nor a .gguf file (a config.json alone serves "
            "with model.format dummy)"
        )
    return _Source(kind, path)


def _spec_of(source: _Source, config: ModelConfig) -> ModelSpec:
    if source.kind == "gguf":
        described, generation = gguf_config(read_header(source.path))
        dtype = GGUF_DTYPE if config.dtype == "auto" else config.dtype
        spec = spec_from_config(described, generation, dtype, str(source.path))
    else:
        path = source.path / "config.json" if source.kind == "hf" else source.path
        described = read_json(path)
        generation = read_json(path.parent / "generation_config.json", required=False)
        dtype = _hf_dtype(described, source, config)
        spec = spec_from_config(described, generation, dtype, str(path))
    _check_length(config, spec)
    return replace(spec, quantization=config.quantization)


def _hf_dtype(described: Mapping[str, Any], source: _Source, config: ModelConfig) -> str:
    if config.dtype != "auto":
        return config.dtype
    dtype = config_dtype(described)
    if dtype is None:
        dtype = "float32" if source.kind == "dummy" else Checkpoint(source.path).dtype()
    return check_dtype(dtype, str(source.path))


def _check_length(config: ModelConfig, spec: ModelSpec) -> None:
    asked = config.max_model_len
    if asked == "auto" or asked <= spec.position_limit:
        return
    reason = ""
    if spec.rope.type == "dynamic":
        reason = (
            "; dynamic rope beyond it turns a token by the length of its sequence, which cached "
            "keys cannot follow"
        )
    raise ConfigError(
        f"model.max_model_len: {asked} is more than the model's {spec.position_limit} "
        f"positions{reason}"
    )
