"""The names of a GGUF file's tensors as Hugging Face's, and which matrices are stored in Q8_0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from runtime.errors import ModelError
from runtime.models._gguf_header import ROPE_FACTORS_TENSOR, GgufHeader, TensorInfo
from runtime.models._spec import ModelSpec, StoredPart
from runtime.models._weight_map import is_matrix, weight_map

Q8_0 = 8
"""The GGMLQuantizationType."""
STORED_TYPES = {
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    20: ("iq4_nl", 32, 18),
    23: ("iq4_xs", 256, 136),
}
"""Those that kernels read, Q8_0 aside: name, inputs of a unit, bytes of it."""

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


def stored_parameters(header: GgufHeader, spec: ModelSpec) -> dict[str, tuple[StoredPart, ...]]:
    """The matrices of which every part is stored in one of `STORED_TYPES`; neighbours of one type
    are one part, but a gate and its up are one only if they are of one type.

    Raises:
        ModelError: as `named_tensors`.
    """
    infos = {tensor.renamed: tensor.info for tensor in named_tensors(header)}
    found: dict[str, list[StoredPart]] = {}
    others = set()
    for name, slot in weight_map(spec).items():
        if not is_matrix(slot.parameter):
            continue
        info = infos.get(name)
        kind = STORED_TYPES.get(info.type_id) if info else None
        if info is None or kind is None:
            others.add(slot.parameter)
            continue
        row_bytes = info.shape[-1] // kind[1] * kind[2]
        parts = found.setdefault(slot.parameter, [])
        if parts and parts[-1].kind == kind[0]:
            parts[-1] = parts[-1]._replace(rows=parts[-1].rows + slot.rows)
        else:
            parts.append(StoredPart(kind[0], slot.start, slot.rows, row_bytes))
    return {name: tuple(parts) for name, parts in found.items() if name not in others}


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
