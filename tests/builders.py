"""Tiny models, in every form that the runtime loads, and dense references to hold them against.

Weights are random but not small, so that a dropped bias or norm shows in the logits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_backends._interface import AttentionShape

ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MistralForCausalLM",
)


def tiny_config(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """A config.json of 2 layers, hidden 64, 4 heads, 2 KV heads, vocabulary 128.

    A change to None writes null; a change to `...` leaves the key out.
    """
    config = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    if architecture == "MistralForCausalLM":
        config["sliding_window"] = None
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Each text at its path under the root, which is returned."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def write_config(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> Path:
    """A folder that holds a config.json alone, for model.format dummy; cheap."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(architecture, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_hf_folder(
    folder: Path,
    architecture: str = "LlamaForCausalLM",
    *,
    dtype: torch.dtype = torch.float32,
    shard_bytes: int | None = None,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """A Hugging Face folder with random weights, written by transformers.

    Args:
        folder: made if absent.
        architecture: one of ARCHITECTURES.
        dtype: of the weights.
        shard_bytes: split into files of at most that size, with an index.
        seed: of the weights.
        changes: to `tiny_config`; the config.json is kept as given, in the spelling given.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(folder, architecture, **{"dtype": str(dtype).removeprefix("torch."), **changes})
    text = (folder / "config.json").read_text()
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    randomize(model, seed)
    model.save_pretrained(folder, max_shard_size=shard_bytes or 10**9)
    (folder / "config.json").write_text(text)
    return folder


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Fill every parameter: norms near 1, biases of 0.3, matrices that keep the scale."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean, scale = 0.0, 1 / math.sqrt(parameter.shape[-1])
            if "norm" in name:
                mean, scale = 1.0, 0.3
            elif parameter.dim() == 1:
                scale = 0.3
            values = torch.randn(parameter.shape, generator=generator) * scale + mean
            parameter.copy_(values)


def reference_logits(folder: Path, token_ids: Sequence[int], dtype: torch.dtype) -> Tensor:
    """transformers' logits of one whole prompt, [T, V] float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([list(token_ids)])).logits[0].float()


class DenseAttend:
    """Attention over one whole prompt with nothing cached: an `Attend` for tests."""

    def __init__(self, shapes: Sequence[AttentionShape]) -> None:
        self.shapes = shapes

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq * D]."""
        shape, num_tokens = self.shapes[layer], q.shape[0]
        groups = shape.num_q_heads // shape.num_kv_heads
        keys, values = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys.float()) * shape.scale
        row = torch.arange(num_tokens)
        distance = row[:, None] - row[None, :]
        hidden = distance < 0
        if shape.window is not None:
            hidden |= distance >= shape.window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, values.float())
        return mixed.to(q.dtype).reshape(num_tokens, -1)


SCALES_AT = {
    **dict.fromkeys(("Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""GGUF types -> where the float16 numbers of a unit are."""


def stored_bytes(
    kind: str, outputs: int, inputs: int, *, seed: int = 0, exponents: tuple[int, int] = (-13, -9)
) -> np.ndarray:
    """[outputs, bytes]: codes at random, under float16 scales that are powers of 2.

    Args:
        exponents: of the scales; the second is exclusive.
    """
    import gguf

    generator = np.random.default_rng(seed)
    unit, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = generator.integers(0, 256, (outputs, inputs // unit, size), dtype=np.uint8)
    for at in SCALES_AT[kind]:
        drawn = generator.integers(*exponents, raw.shape[:2])
        scales = np.exp2(drawn.astype(np.float32)).astype(np.float16)
        raw[:, :, at : at + 2] = scales[:, :, None].view(np.uint8)
    return raw.reshape(outputs, -1)


def make_gguf(path: Path, hf_folder: Path, architecture: str, kind: str, **metadata: Any) -> Path:
    """The weights of a single-file folder as a GGUF, rows ordered as llama.cpp orders them.

    Args:
        path: of the file.
        hf_folder: from `make_hf_folder`, not sharded.
        architecture: GGUF's name: llama, qwen2, qwen3.
        kind: a type, such as Q8_0 or BF16; bytes at random where the library cannot write it.
        metadata: more keys, with `__` for a dot; those that begin with `_` lose the architecture
            as their prefix. The value `...` leaves a default out. `_tensor` adds tensors, `_kinds`
            gives matrices, by their names in the file, other types than `kind`.
    """
    import gguf
    from safetensors.torch import load_file

    config = json.loads((hf_folder / "config.json").read_text())
    extra_tensors: dict[str, Tensor] = metadata.pop("_tensor", {})
    kinds: dict[str, str] = metadata.pop("_kinds", {})
    writer = gguf.GGUFWriter(path, metadata.pop("_general__architecture", architecture))
    for key, value in _gguf_keys(config, architecture, metadata).items():
        _add(writer, key, value)
    for name, tensor in extra_tensors.items():
        writer.add_tensor(name, tensor.numpy())
    model_arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(model_arch, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(hf_folder / "model.safetensors").items():
        values = tensor.float().numpy()
        for projection, num_heads in heads.items():
            if architecture == "llama" and projection in name:
                halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
        renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1:
            writer.add_tensor(renamed, values)
        else:
            type_id = gguf.GGMLQuantizationType[kinds.get(renamed, kind)]
            try:
                stored = gguf.quantize(values, type_id)
            except NotImplementedError:
                stored = stored_bytes(type_id.name, *values.shape)
            writer.add_tensor(renamed, stored, raw_dtype=type_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_keys(
    config: dict[str, Any], architecture: str, metadata: dict[str, Any]
) -> dict[str, Any]:
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    keys = {f"{architecture}.{key}": value for key, value in keys.items()}
    keys["tokenizer.ggml.eos_token_id"] = 2
    keys["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(config["vocab_size"])]
    for name, value in metadata.items():
        plain = name.lstrip("_").replace("__", ".")
        keys[plain if name.startswith("_") else f"{architecture}.{plain}"] = value
    return {key: value for key, value in keys.items() if value is not ...}


def _add(writer: Any, key: str, value: Any) -> None:
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)
