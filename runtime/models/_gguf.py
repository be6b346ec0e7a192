"""The header of a GGUF file, and the Hugging Face config that it amounts to.

The `gguf` library's reader builds an array for each of the tokenizer's hundred thousand strings,
which takes seconds; this one skips them. Layout: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from runtime.errors import ModelError
from runtime.models._rope_spec import FREQUENCY_FACTORS

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROPE_FACTORS_TENSOR = "rope_freqs.weight"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_MOST_KEPT = 4096


class TensorInfo(NamedTuple):
    """One tensor of the file."""

    shape: tuple[int, ...]
    """Rows first, as torch has it."""

    type_id: int
    """A GGMLQuantizationType."""

    offset: int
    """Of its data, from the start of the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor table; arrays of strings, and long ones, are kept as None."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    frequency_factors: tuple[float, ...]
    """Divisors of the rotary frequencies (llama3 scaling); empty where the file has none."""


def read_header(path: Path) -> GgufHeader:
    """Parse the header.

    Raises:
        ModelError: not a GGUF file, an unsupported version, or cut short.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
        raise ModelError(f"{path}: the GGUF header is damaged or cut short ({error})") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def gguf_config(header: GgufHeader) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config.json and generation_config.json that the header amounts to.

    Raises:
        ModelError: an architecture or a feature that is not supported, or a missing key.
    """
    read = _Keys(header)
    heads = read.integer("attention.head_count")
    width = read.integer("embedding_length")
    head_dim = read.optional("attention.key_length") or width // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if read.optional(key) not in (None, head_dim):
            raise ModelError(
                f"{header.path}: {read.prefix}.{key} {read.optional(key)} differs from the head "
                f"size {head_dim}, which is not supported"
            )
    window = read.optional("attention.sliding_window")
    architecture = ARCHITECTURES[read.prefix]
    if window and read.prefix == "llama":
        architecture = "MistralForCausalLM"
    config = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": read.tensor("token_embd.weight").shape[0],
        "hidden_size": width,
        "intermediate_size": read.integer("feed_forward_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.optional("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "max_position_embeddings": read.integer("context_length"),
        "rms_norm_eps": read.required("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "rope_parameters": _rope(read, header),
        "sliding_window": window,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
    }
    ids = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return config, {"eos_token_id": list(dict.fromkeys(i for i in ids if i is not None)) or None}


def _rope(read: _Keys, header: GgufHeader) -> dict[str, Any]:
    theta = read.optional("rope.freq_base") or 10000.0
    kind = read.optional("rope.scaling.type") or "none"
    factor = read.optional("rope.scaling.factor") or read.optional("rope.scale_linear") or 1.0
    if header.frequency_factors:
        return {
            "rope_type": FREQUENCY_FACTORS,
            "rope_theta": theta,
            FREQUENCY_FACTORS: list(header.frequency_factors),
        }
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    rope = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    original = read.optional("rope.scaling.original_context_length")
    if kind == "yarn" and original:
        rope["original_max_position_embeddings"] = original
    for key in ("attn_factor", "yarn_attn_factor", "yarn_log_multiplier", "yarn_ext_factor"):
        if read.optional(f"rope.scaling.{key}") not in (None, 0.0, 1.0):
            raise ModelError(f"{header.path}: {read.prefix}.rope.scaling.{key} is not supported")
    return rope


class _Keys:
    """The metadata of the file's architecture."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        metadata = header.metadata
        self.prefix = metadata.get("general.architecture")
        if self.prefix not in ARCHITECTURES:
            raise ModelError(
                f"{header.path}: unsupported GGUF architecture {self.prefix!r}; supported: "
                f"{', '.join(ARCHITECTURES)} (Mistral is stored as llama)"
            )
        if (metadata.get("split.count") or 1) > 1:
            raise ModelError(
                f"{header.path} is one part of a split GGUF; merge the parts into one file first"
            )
        if self.optional("expert_count"):
            raise ModelError(f"{header.path}: mixtures of experts are not supported")

    def optional(self, name: str) -> Any:
        return self._header.metadata.get(f"{self.prefix}.{name}")

    def required(self, name: str) -> Any:
        value = self.optional(name)
        if value is None:
            raise ModelError(f"{self._header.path}: the key {self.prefix}.{name} is missing")
        return value

    def integer(self, name: str) -> int:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(
                f"{self._header.path}: {self.prefix}.{name} must be an integer above 0, "
                f"not {value!r}"
            )
        return value

    def tensor(self, name: str) -> TensorInfo:
        if name not in self._header.tensors:
            raise ModelError(f"{self._header.path}: the tensor {name} is missing")
        return self._header.tensors[name]


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        end = self.position + length
        if end > len(self.data):
            raise struct.error("a string runs past the end of the file")
        raw = self.data[self.position : end]
        self.position = end
        return raw.decode("utf-8")

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        return self.array() if type_id == _ARRAY else self.scalar(_SCALARS[type_id])

    def array(self) -> list[Any] | None:
        """The items; None, skipped, for strings and for long arrays."""
        type_id, length = self.scalar("I"), self.scalar("Q")
        if type_id == _STRING:
            self._skip_strings(length)
            return None
        if type_id in _SCALARS and length > _MOST_KEPT:
            self.position += length * struct.calcsize(f"<{_SCALARS[type_id]}")
            return None
        return [self.value(type_id) for _ in range(length)]

    def _skip_strings(self, count: int) -> None:
        data, position = self.data, self.position
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    if data[:4] != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file (it does not begin with GGUF)")
    cursor = _Cursor(data)
    cursor.position = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported; supported: 2, 3")
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    table = []
    for _ in range(num_tensors):
        name, dimensions = cursor.string(), cursor.scalar("I")
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
        table.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    start = math.ceil(cursor.position / alignment) * alignment
    tensors = {name: TensorInfo(shape, kind, start + offset) for name, shape, kind, offset in table}
    factors: tuple[float, ...] = ()
    if ROPE_FACTORS_TENSOR in tensors:
        info = tensors[ROPE_FACTORS_TENSOR]
        factors = struct.unpack_from(f"<{math.prod(info.shape)}f", data, info.offset)
    return GgufHeader(path, metadata, tensors, factors)
