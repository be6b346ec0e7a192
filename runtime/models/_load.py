"""From a ModelConfig to a described, or a built and filled, model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.models._checkpoint import Checkpoint, read_json
from runtime.models._config import (
    CONFIG,
    GENERATION_CONFIG,
    check_dtype,
    config_dtype,
    spec_from_config,
)
from runtime.models._gguf_config import gguf_config
from runtime.models._gguf_header import GgufHeader, read_header
from runtime.models._gguf_names import q8_0_parameters, stored_parameters
from runtime.models._spec import ModelSpec
from runtime.models._weight_map import is_matrix, parameter_shapes

if TYPE_CHECKING:
    import torch

    from runtime.models._loaded import LoadedModel

GGUF_DTYPE = "bfloat16"
"""What `auto` means for a GGUF file, whose own types are not computed in."""

_log = logging.getLogger(__name__)


class _Source(NamedTuple):
    kind: str
    path: Path
    """Folder (hf), file (gguf) or config.json (dummy)."""


def read_spec(config: ModelConfig, device: torch.device | None = None) -> ModelSpec:
    """Describe the model; reads headers only, and without a device imports no torch.

    Args:
        device: where it will run, which settles whether `model.quantization: auto` keeps Q8_0.
            Without one, matrices that may stay in Q8_0 count as staying.

    Raises:
        ModelError: missing, corrupt or unsupported.
        ConfigError: model.path, model.format, model.quantization or model.max_model_len cannot be
            met.
    """
    spec = _spec_of(_locate(config), config)
    return spec if device is None else _settled(spec, config, device)


def load_model(
    config: ModelConfig, device: torch.device, spec: ModelSpec | None = None
) -> LoadedModel:
    """Build the model on the device and fill it.

    Args:
        spec: what `read_spec` gave for the config, where it has been read already.

    Raises:
        ModelError: missing, corrupt or unsupported.
        ConfigError: a key of the section `model` cannot be met.
    """
    from runtime.models._linear_paths import check_linear_path
    from runtime.models._loaded import build
    from runtime.models._weights import fill_at_random, fill_from_checkpoint

    source = _locate(config)
    spec = _settled(spec or _spec_of(source, config), config, device)
    check_linear_path(spec, device)
    if source.kind == "dummy":
        return build(spec, device, lambda model: fill_at_random(model, config.seed))
    folder = source.path
    if source.kind == "gguf":
        from runtime.models._gguf_convert import converted_folder

        folder = converted_folder(source.path, config, spec)
        _log_kept(spec, config)
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
        return _Source("dummy", path / CONFIG if path.is_dir() else path)
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
    if config.quantization == "q8_0" and source.kind != "gguf":
        raise _nothing_in_q8_0(source.path)
    if source.kind == "gguf":
        header = read_header(source.path)
        described, generation = gguf_config(header)
        dtype = GGUF_DTYPE if config.dtype == "auto" else config.dtype
        spec = spec_from_config(described, generation, dtype, str(source.path))
        eos_from = ("GGUF metadata",) * len(spec.eos_token_ids)
        spec = replace(
            spec,
            q8_0=_kept_in_q8_0(header, spec, config),
            stored=stored_parameters(header, spec) if _may_stay(spec, config) else {},
            eos_from=eos_from,
        )
    else:
        path = source.path / CONFIG if source.kind == "hf" else source.path
        described = read_json(path)
        generation = read_json(path.parent / GENERATION_CONFIG, required=False)
        dtype = _hf_dtype(described, source, config)
        spec = spec_from_config(described, generation, dtype, str(path))
    _check_length(config, spec)
    quantization = "int8" if config.quantization == "int8" else "none"
    return replace(spec, quantization=quantization, linear_path=config.linear_path)


def _may_stay(spec: ModelSpec, config: ModelConfig) -> bool:
    """Whether `auto` keeps matrices as a GGUF file stores them, if kernels read them here."""
    return config.quantization == "auto" and spec.dtype == "bfloat16"


def _kept_in_q8_0(header: GgufHeader, spec: ModelSpec, config: ModelConfig) -> frozenset[str]:
    may = config.quantization == "q8_0" or _may_stay(spec, config)
    kept = q8_0_parameters(header, spec) if may else frozenset()
    if config.quantization == "q8_0" and not kept:
        raise _nothing_in_q8_0(header.path)
    return kept


def _nothing_in_q8_0(path: Path) -> ConfigError:
    return ConfigError(
        f"model.quantization: q8_0 keeps what a GGUF file has in Q8_0, and {path} has no matrix in "
        "it; allowed here: auto, none, int8"
    )


def _settled(spec: ModelSpec, config: ModelConfig, device: torch.device) -> ModelSpec:
    """Under `auto`, matrices stay as they are stored where kernels read them: widened at each call
    they would be slower than 16 bits."""
    if not (spec.q8_0 or spec.stored) or config.quantization != "auto":
        return spec
    from runtime.models._loaded import torch_dtype
    from runtime.ops import kernel_problem

    kinds = sorted({part.kind for parts in spec.stored.values() for part in parts})
    problem = kernel_problem(device, torch_dtype(spec), kinds)
    if not problem:
        return spec
    hint = "; model.quantization: q8_0 keeps them in 8 bits, slower" if spec.q8_0 else ""
    _log.info(
        "%d matrices in %s are widened to %s, since no native kernel reads them (%s)%s",
        *(len(spec.q8_0) + len(spec.stored), _kinds_of(spec), spec.dtype, problem, hint),
    )
    return replace(spec, q8_0=frozenset(), stored={})


def _kinds_of(spec: ModelSpec) -> str:
    """As GGUF names them."""
    kinds = {part.kind.upper() for parts in spec.stored.values() for part in parts}
    return ", ".join(sorted(kinds | ({"Q8_0"} if spec.q8_0 else set())))


def _log_kept(spec: ModelSpec, config: ModelConfig) -> None:
    kept = len(spec.q8_0) + len(spec.stored)
    if kept:
        matrices = sum(map(is_matrix, parameter_shapes(spec)))
        _log.info(
            "%d of %d matrices stay in %s, as %s has them; model.quantization: none widens them "
            "to %s",
            *(kept, matrices, _kinds_of(spec), config.path, spec.dtype),
        )


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
