"""The declared map: the parameters of a decoder, and the rows that each checkpoint tensor fills."""

from __future__ import annotations

import math
from typing import NamedTuple

from runtime.models._cut import WHOLE, Cut
from runtime.models._spec import DTYPE_BYTES, ModelSpec, StoredPart

BLOCK_INPUTS = 32
"""Inputs of an output that share a scale in Q8_0."""
SUPER_BLOCK_INPUTS = 256
"""The most that do so in any type."""


class Slot(NamedTuple):
    """Where a checkpoint's tensor belongs: rows [start, start + rows) of a parameter."""

    parameter: str
    start: int
    rows: int
    repeated: bool = False
    """Each of the rows is the whole tensor (one head norm for all heads)."""
    cut: Cut = WHOLE
    """How ranks may divide the tensor."""


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every parameter by name; q, k, v and gate, up are fused along their rows."""
    hidden, inner, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_rows, heads = spec.num_q_heads * head, spec.num_q_heads + spec.num_kv_heads
    qkv_rows = q_rows + 2 * spec.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = f"layers.{layer}."
        shapes[f"{prefix}input_norm.weight"] = (hidden,)
        shapes[f"{prefix}qkv.weight"] = (qkv_rows, hidden)
        shapes[f"{prefix}output.weight"] = (hidden, q_rows)
        shapes[f"{prefix}mlp_norm.weight"] = (hidden,)
        shapes[f"{prefix}gate_up.weight"] = (2 * inner, hidden)
        shapes[f"{prefix}down.weight"] = (hidden, inner)
        if spec.qkv_bias:
            shapes[f"{prefix}qkv.bias"] = (qkv_rows,)
        if spec.o_bias:
            shapes[f"{prefix}output.bias"] = (hidden,)
        if spec.mlp_bias:
            shapes[f"{prefix}gate_up.bias"] = (2 * inner,)
            shapes[f"{prefix}down.bias"] = (hidden,)
        if spec.qk_norm:
            shapes[f"{prefix}head_norm.weight"] = (heads, head)
    shapes["norm.weight"] = (hidden,)
    if not spec.tie_embeddings:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    return shapes


def allocations(spec: ModelSpec) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor that is filled: the parameters, those kept in Q8_0 as integers
    and scales, other stored ones as bytes, each part by itself."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, shape in parameter_shapes(spec).items():
        if name in spec.q8_0:
            found[name] = shape, "int8"
            found[scales_of(name)] = (shape[0], shape[1] // BLOCK_INPUTS), "float16"
        elif name in spec.stored:
            for part, (_, _, rows, row_bytes) in stored_parts(spec, name).items():
                found[part] = (rows, row_bytes), "uint8"
        else:
            found[name] = shape, spec.dtype
    return found


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of all parameters as they are kept; a tied head counts once.

    8-bit matrices take a byte an element and a float32 scale an output, those in Q8_0 a float16
    scale for each 32 elements, other stored ones what they take in the file.
    """
    total = 0
    for name, (shape, dtype) in allocations(spec).items():
        is_table = name == "embedding.weight" and not spec.tie_embeddings
        if spec.quantization == "int8" and is_matrix(name) and not is_table:
            total += math.prod(shape) + 4 * shape[0]
        else:
            total += math.prod(shape) * DTYPE_BYTES[dtype]
    return total


def stored_parts(spec: ModelSpec, parameter: str) -> dict[str, StoredPart]:
    """The parts of a stored matrix by the names of their tensors; empty where it is not stored."""
    parts = spec.stored.get(parameter, ())
    if len(parts) == 1:
        return {parameter: parts[0]}
    return {f"{parameter}.{place}": part for place, part in enumerate(parts)}


def scales_of(weight: str) -> str:
    """The name of a Q8_0 weight's scales, of a parameter or a checkpoint's tensor."""
    return f"{weight}_scales"


def is_matrix(parameter: str) -> bool:
    """Whether it is the weight of a projection or the embedding: no norm and no bias."""
    return parameter.endswith(".weight") and "norm" not in parameter


def weight_map(spec: ModelSpec) -> dict[str, Slot]:
    """Each tensor of a Hugging Face checkpoint, and where it belongs; scales of Q8_0 included."""
    q_rows, kv_rows = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q, kv = Cut(0, spec.num_q_heads), Cut(0, spec.num_kv_heads, repeats=True)
    output, column = Cut(1, spec.num_q_heads), Cut(0, inner)
    shared = (BLOCK_INPUTS if spec.q8_0 else 1) if not spec.stored else SUPER_BLOCK_INPUTS
    row = Cut(1, max(1, inner // shared))  # who share a scale stay together
    vocabulary = Cut(0, spec.vocab_size, is_ragged=True)
    parts = [
        ("self_attn.q_proj", "qkv", 0, q_rows, spec.qkv_bias, q),
        ("self_attn.k_proj", "qkv", q_rows, kv_rows, spec.qkv_bias, kv),
        ("self_attn.v_proj", "qkv", q_rows + kv_rows, kv_rows, spec.qkv_bias, kv),
        ("self_attn.o_proj", "output", 0, hidden, spec.o_bias, output),
        ("mlp.gate_proj", "gate_up", 0, inner, spec.mlp_bias, column),
        ("mlp.up_proj", "gate_up", inner, inner, spec.mlp_bias, column),
        ("mlp.down_proj", "down", 0, hidden, spec.mlp_bias, row),
        ("input_layernorm", "input_norm", 0, hidden, False, WHOLE),
        ("post_attention_layernorm", "mlp_norm", 0, hidden, False, WHOLE),
    ]
    slots = {
        "model.embed_tokens.weight": Slot("embedding.weight", 0, spec.vocab_size, cut=vocabulary)
    }
    for layer in range(spec.num_layers):
        source, target = f"model.layers.{layer}.", f"layers.{layer}."
        for name, parameter, start, rows, has_bias, cut in parts:
            slot = Slot(f"{target}{parameter}.weight", start, rows, cut=cut)
            slots[f"{source}{name}.weight"] = slot
            if has_bias:  # where inputs are cut, it is added to the sum over the ranks
                slots[f"{source}{name}.bias"] = slot._replace(
                    parameter=f"{target}{parameter}.bias", cut=WHOLE if cut.axis == 1 else cut
                )
        if spec.qk_norm:
            parameter = f"{target}head_norm.weight"
            slots[f"{source}self_attn.q_norm.weight"] = Slot(parameter, 0, spec.num_q_heads, True)
            slots[f"{source}self_attn.k_norm.weight"] = Slot(
                parameter, spec.num_q_heads, spec.num_kv_heads, True
            )
    slots["model.norm.weight"] = Slot("norm.weight", 0, hidden)
    if not spec.tie_embeddings:
        slots["lm_head.weight"] = Slot("head.weight", 0, spec.vocab_size, cut=vocabulary)
    scales = {
        scales_of(name): slot._replace(parameter=scales_of(slot.parameter))
        for name, slot in slots.items()
        if slot.parameter in spec.q8_0
    }
    return {name: _into_part(spec, slot) for name, slot in {**slots, **scales}.items()}


def _into_part(spec: ModelSpec, slot: Slot) -> Slot:
    """The same place, in the tensor of its part."""
    for name, part in stored_parts(spec, slot.parameter).items():
        if part.start <= slot.start < part.start + part.rows:
            return slot._replace(parameter=name, start=slot.start - part.start)
    return slot
