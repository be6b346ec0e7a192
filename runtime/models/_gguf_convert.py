"""Converting a GGUF file, once, into a folder of 16- or 32-bit safetensors in the disk cache.

The result is a Hugging Face checkpoint, so loading has one path; matrices that stay as
they are stored are beyond that format: Q8_0's integers, and their scales by a name of their own;
the blocks of other types as bytes. It is published whole or not at all
(runtime/machine/disk_cache.py).
"""

from __future__ import annotations

import errno
import json
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attention_backends import is_out_of_memory
from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.machine.disk_cache import (
    cache_folder_of,
    cache_root,
    check_writable,
    is_whole,
    publish_folder,
)
from runtime.models._checkpoint import INDEX_FILE, SINGLE_FILE
from runtime.models._gguf_config import gguf_config
from runtime.models._gguf_header import GgufHeader, TensorInfo, read_header
from runtime.models._gguf_names import named_tensors
from runtime.models._spec import ModelSpec
from runtime.models._weight_map import (
    BLOCK_INPUTS,
    scales_of,
    stored_parts,
    weight_bytes,
    weight_map,
)

CONVERTER_VERSION = 1
"""Raise it when the same file would convert to something else."""

SHARD_BYTES = 512 << 20
_OS_ERROR = re.compile(r"os error (\d+)")
_log = logging.getLogger(__name__)


def converted_folder(path: Path, config: ModelConfig, spec: ModelSpec) -> Path:
    """The folder with the file's weights in the spec's type or kept in Q8_0, converted now if it
    is not there.

    Raises:
        ModelError: the file is cut short or holds something unsupported, or disk or memory is full.
        ConfigError: the cache cannot be written.
    """
    folder = _folder_of(path, config, spec)
    if is_whole(folder):
        return folder
    header = read_header(path)
    _check_tensors(header)

    def write(into: Path) -> None:
        started = time.perf_counter()
        _log.info("converting %s to %s in %s", path, spec.dtype, folder)
        try:
            _write(header, spec, into)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                f"out of memory while converting {path}, which takes place on the host: free "
                f"memory there, or take a smaller model. {error}"
            ) from error
        _log.info("converted in %.1f s", time.perf_counter() - started)

    publish_folder(folder, write, needed_bytes=_needed_bytes(spec))
    return folder


def check_conversion(path: Path, config: ModelConfig, spec: ModelSpec) -> None:
    """What `converted_folder` would refuse, without converting; reads the file only where the
    cache cannot be written.

    Raises:
        ModelError, ConfigError: as `converted_folder`.
    """
    _check_tensors(read_header(path))
    try:
        check_writable(cache_root(config) / "gguf" / "any", needed_bytes=_needed_bytes(spec))
    except (ModelError, ConfigError):
        forms = (
            spec,
            replace(spec, q8_0=frozenset(), stored={}),
        )  # the kernels that settle it may come later
        if not any(is_whole(_folder_of(path, config, form)) for form in forms):
            raise


def _folder_of(path: Path, config: ModelConfig, spec: ModelSpec) -> Path:
    kept = ("-q8_0" if spec.q8_0 else "") + ("-stored" if spec.stored else "")
    return cache_folder_of(path, config) / f"weights-v{CONVERTER_VERSION}-{spec.dtype}{kept}"


def _needed_bytes(spec: ModelSpec) -> int:
    return int(weight_bytes(spec) * 1.01)


def _write(header: GgufHeader, spec: ModelSpec, folder: Path) -> None:
    config, generation = gguf_config(header)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": spec.dtype}, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    file_of: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    for name, tensor in _tensors(header, spec):
        shard[name] = tensor
        if sum(t.nbytes for t in shard.values()) >= SHARD_BYTES:
            _save(shard, folder, file_of)
            shard = {}
    if shard:
        _save(shard, folder, file_of)
    if len(set(file_of.values())) == 1:
        (folder / next(iter(file_of.values()))).rename(folder / SINGLE_FILE)
    else:
        (folder / INDEX_FILE).write_text(json.dumps({"weight_map": file_of}, indent=1))


def _save(shard: dict[str, Tensor], folder: Path, file_of: dict[str, str]) -> None:
    name = f"model-{len(set(file_of.values())) + 1:05}.safetensors"
    try:
        save_file(shard, folder / name, metadata={"format": "pt"})
    except SafetensorError as error:
        code = _OS_ERROR.search(str(error))
        raise OSError(int(code.group(1)) if code else errno.EIO, str(error)) from error
    file_of.update(dict.fromkeys(shard, name))


def _tensors(header: GgufHeader, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """Each tensor by its Hugging Face name, dequantised unless it is to stay in Q8_0, with rows in
    Hugging Face's order."""
    data = np.asarray(np.memmap(header.path, mode="r"))
    slots, dtype = weight_map(spec), getattr(torch, spec.dtype)
    prefix = header.metadata["general.architecture"]
    stored = {name for parameter in spec.stored for name in stored_parts(spec, parameter)}
    interleaved = {"attn_q": spec.num_q_heads, "attn_k": spec.num_kv_heads}
    for name, part, renamed, info in named_tensors(header):
        num_heads = interleaved.get(part, 0) if prefix == "llama" else 0
        slot = slots.get(renamed)
        if slot is not None and slot.parameter in spec.q8_0:
            integers, scales = _q8_0(data, info, f"{header.path}: the tensor {name}")
            yield renamed, torch.from_numpy(_to_half_split(integers, num_heads))
            yield scales_of(renamed), torch.from_numpy(_to_half_split(scales, num_heads))
        elif slot is not None and slot.parameter in stored:
            blocks = _blocks(data, info, f"{header.path}: the tensor {name}")
            yield renamed, torch.from_numpy(_to_half_split(blocks, num_heads).copy())
        else:
            values = _to_half_split(_dequantized(data, info), num_heads)
            yield renamed, torch.from_numpy(values).to(dtype).contiguous()


def _q8_0(data: np.ndarray, info: TensorInfo, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Integers [out, in] and scales [out, in / 32]; stored as blocks of a scale and 32 integers."""
    raw = data[info.offset : info.offset + _num_bytes(info)]
    blocks = raw.reshape(info.shape[0], -1, 2 + BLOCK_INPUTS)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]
    if not np.isfinite(scales).all():
        raise ModelError(f"{where} holds scales that are not finite; the file is damaged")
    return blocks[:, :, 2:].reshape(info.shape).view(np.int8), scales


def _blocks(data: np.ndarray, info: TensorInfo, where: str) -> np.ndarray:
    """[out, bytes], as stored."""
    kind = gguf.GGMLQuantizationType(info.type_id)
    raw = data[info.offset : info.offset + _num_bytes(info)]
    units = raw.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    for at in _SCALES_AT[kind]:
        if not np.isfinite(np.ascontiguousarray(units[:, at : at + 2]).view(np.float16)).all():
            raise ModelError(f"{where} holds scales that are not finite; the file is damaged")
    return raw.reshape(gguf.quant_shape_to_byte_shape(info.shape, kind))


def _dequantized(data: np.ndarray, info: TensorInfo) -> np.ndarray:
    kind = gguf.GGMLQuantizationType(info.type_id)
    raw = data[info.offset : info.offset + _num_bytes(info)]
    if kind in _PLAIN:
        stored = raw.view(_PLAIN[kind]).reshape(info.shape)
    else:
        stored = raw.reshape(gguf.quant_shape_to_byte_shape(info.shape, kind))
    values = gguf.dequantize(stored, kind).astype(np.float32, copy=False)
    return values if values.flags.writeable else values.copy()


_T = gguf.GGMLQuantizationType
_SCALES_AT = {
    **dict.fromkeys((_T.Q4_0, _T.Q5_0, _T.IQ4_NL, _T.IQ4_XS), (0,)),
    **dict.fromkeys((_T.Q4_1, _T.Q5_1, _T.Q4_K, _T.Q5_K), (0, 2)),
    _T.Q2_K: (80, 82),
    _T.Q3_K: (108,),
    _T.Q6_K: (208,),
}
"""Where the float16 numbers of a unit are."""
_PLAIN = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}


def _to_half_split(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's order of q and k rows: pairs (0, 1), (2, 3).. back to (i, i + D/2). Without
    heads there is nothing to undo."""
    if not num_heads:
        return np.ascontiguousarray(values)
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _check_tensors(header: GgufHeader) -> None:
    """Names, types and extents of every tensor, before anything is written."""
    size = header.path.stat().st_size
    list(named_tensors(header))
    for name, info in header.tensors.items():
        _check_type(name, info, header.path)
        end = info.offset + _num_bytes(info)
        if end > size:
            raise ModelError(
                f"{header.path} is cut short: the tensor {name} ends at byte {end}, the file has "
                f"{size}; download or copy it again"
            )


def _check_type(name: str, info: TensorInfo, path: Path) -> None:
    try:
        kind = gguf.GGMLQuantizationType(info.type_id)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if kind not in _PLAIN:
            gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        raise ModelError(
            f"{path}: the tensor {name} is stored in type {info.type_id}, which the gguf library "
            "cannot dequantize; requantize the file, for example to Q8_0 or BF16"
        ) from None
    if info.shape[-1] % block:
        raise ModelError(
            f"{path}: the tensor {name} has rows of {info.shape[-1]}, no multiple of the {block} "
            f"of {kind.name}"
        )


def _num_bytes(info: TensorInfo) -> int:
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(info.type_id)]
    return int(np.prod(info.shape)) // block * block_bytes
