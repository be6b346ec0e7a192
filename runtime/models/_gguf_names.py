"""The names of a GGUF file's tensors as Hugging Face's, and which matrices are stored in Q8_0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from runtime.errors import ModelError
from runtime.models._gguf_header import ROPE_FACTORS_TENSOR, GgufHeader, TensorInfo
from runtime.models._spec import ModelSpec
from runtime.models._weight_map import is_matrix, weight_map

Q8_0 = 8
"""The GGMLQuantizationType."""

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


class NamedTensor(NamedTuple):
    """One tensor of the file that belongs to the model."""

    name: str
    """In the file."""

    part: str
    """What it is there, such as attn_q."""

    renamed: str
    """In a Hugging Face checkpoint."""

    info: TensorInfo


def named_tensors(header: GgufHeader) -> Iterator[NamedTensor]:
    """All but the rotary factors.

    Raises:
        ModelError: a name that has no place in the architecture.
    """
    for name, info in header.tensors.items():
        if name == ROPE_FACTORS_TENSOR:
            continue
        match = _NAME.fullmatch(name)
        if match is None or match.group(2) not in _NAMES:
            architecture = header.metadata["general.architecture"]
            raise ModelError(f"{header.path}: {architecture} has no place for the tensor {name}")
        layer, part, kind = match.groups()
        prefix = "" if layer is None else f"model.layers.{layer}."
        yield NamedTensor(name, part, f"{prefix}{_NAMES[part]}.{kind}", info)


def q8_0_parameters(header: GgufHeader, spec: ModelSpec) -> frozenset[str]:
    """The matrices of which every part is stored in Q8_0; fused ones have several.

    Raises:
        ModelError: as `named_tensors`.
    """
    types = {tensor.renamed: tensor.info.type_id for tensor in named_tensors(header)}
    found: dict[str, bool] = {}
    for name, slot in weight_map(spec).items():
        if is_matrix(slot.parameter):
            is_kept = found.get(slot.parameter, True)
            found[slot.parameter] = is_kept and types.get(name) == Q8_0
    return frozenset(parameter for parameter, is_kept in found.items() if is_kept)
