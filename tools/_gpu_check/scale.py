"""What is run: whole on a GPU, or small enough to try the check itself on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from runtime.models._rope_spec import RopeSpec
from runtime.models._spec import ModelSpec

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
"""Sizes of the public checkpoint's config.json."""

TINY = {
    **QWEN3_8B,
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_size": 128,
    "intermediate_size": 192,
    "max_position_embeddings": 8192,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
    "vocab_size": 512,
}

SHORT = ((23, 9), (1, 12), (70, 5), (16, 16), (5, 3), (33, 7))
"""(prompt, output) tokens: decodes beside chunks, rows that are left and taken again."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one run of the check."""

    device: torch.device
    speed_config: dict[str, object]
    exact_config: dict[str, object]
    exact_dtypes: tuple[str, ...]
    exact_lengths: tuple[tuple[int, int], ...]
    """(prompt, output) tokens of requests that share steps"""
    exact_context: int
    """Most keys of a request: every bound of keys that a backend may bake lies below it"""
    exact_rows: int
    """Most requests of a step: enough that a decode step's keys are not split"""
    exact_budget: int
    exact_sizes: tuple[int, ...]
    """graph buckets"""
    attention_keys: int
    attention_rows: tuple[int, ...]
    """of captured decode steps; each splits keys into another number of parts"""
    attention_tokens: int
    """of captured ragged steps"""
    draw_rows: int
    draw_vocab: int
    op_tokens: int
    op_width: int
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    step_tokens: int
    """of prefill and mixed steps, and the token budget"""
    pool_tokens: int
    """the most that the KV pool of the speed sections holds"""
    copy_bytes: int
    matrix_size: int
    repeats: int
    decode_mode: str
    mixed_modes: tuple[str, ...]
    backends: tuple[str, ...] | None
    """None: every one that is able, the reference aside"""

    @property
    def has_aims(self) -> bool:
        """Whether speed has a verdict: on a CPU it says nothing."""
        return self.device.type == "cuda"


def whole(device: torch.device) -> Scale:
    """Qwen3-8B's shape."""
    return Scale(
        device=device,
        speed_config=QWEN3_8B,
        exact_config=TINY,
        exact_dtypes=("bfloat16", "float32"),
        exact_lengths=(*SHORT, (1500, 12), (4300, 9)),
        exact_context=4608,
        exact_rows=256,
        exact_budget=256,
        exact_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        attention_keys=4608,
        attention_rows=(1, 2, 4, 8, 16, 32, 64),
        attention_tokens=512,
        draw_rows=64,
        draw_vocab=QWEN3_8B["vocab_size"],
        op_tokens=777,
        op_width=4096,
        contexts=(512, 4096),
        rows=(1, 8, 64, 256),
        step_tokens=2048,
        pool_tokens=400_000,
        copy_bytes=4 << 30,
        matrix_size=8192,
        repeats=20,
        decode_mode="full",
        mixed_modes=("segmented", "ragged"),
        backends=None,
    )


def tiny(device: torch.device) -> Scale:
    """Seconds on a CPU, with emulated graphs. On a GPU only what is timed is small: of what is
    compared, lengths and rows matter."""
    small = replace(
        whole(device),
        speed_config=TINY,
        op_tokens=5,
        op_width=64,
        contexts=(16, 40),
        rows=(1, 4),
        step_tokens=32,
        pool_tokens=1024,
        copy_bytes=1 << 20,
        matrix_size=64,
        repeats=3,
    )
    if device.type == "cuda":
        return small
    return replace(
        small,
        exact_dtypes=("float32",),
        exact_lengths=(*SHORT, (1050, 6)),
        exact_context=1100,
        exact_rows=8,
        exact_budget=32,
        exact_sizes=(1, 2, 4, 8, 32),
        attention_keys=1100,
        attention_rows=(1, 4),
        attention_tokens=32,
        draw_rows=12,
        draw_vocab=6001,
        decode_mode="emulated",
        mixed_modes=("emulated",),
        backends=("torch_paged",),
    )


def spec_of(config: dict[str, object]) -> ModelSpec:
    """The described model, without what validates configs: that needs more than torch."""
    get = dict(config).__getitem__
    layers = get("num_hidden_layers")
    return ModelSpec(
        architecture="Qwen3ForCausalLM",
        dtype=get("torch_dtype"),
        vocab_size=get("vocab_size"),
        num_layers=layers,
        hidden_size=get("hidden_size"),
        intermediate_size=get("intermediate_size"),
        num_q_heads=get("num_attention_heads"),
        num_kv_heads=get("num_key_value_heads"),
        head_dim=get("head_dim"),
        max_position=get("max_position_embeddings"),
        position_limit=get("max_position_embeddings"),
        windows=(None,) * layers,
        rms_norm_eps=get("rms_norm_eps"),
        rope=RopeSpec(type="default", theta=get("rope_theta")),
        tie_embeddings=get("tie_word_embeddings"),
        qkv_bias=get("attention_bias"),
        o_bias=get("attention_bias"),
        mlp_bias=False,
        qk_norm=True,
        eos_token_ids=(get("eos_token_id"),),
    )
