"""From a parsed config.json (Hugging Face's keys) to a ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.errors import ModelError
from runtime.models._plugins import find_plugin
from runtime.models._rope_spec import RopeSpec, read_rope
from runtime.models._spec import DTYPE_BYTES, ModelSpec

ACTIVATIONS = ("silu", "swish")
_GENERATION_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

Size = Annotated[int, Field(ge=1)]


class _Sizes(BaseModel):
    """The keys whose types matter; every other key of the file is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size
    rms_norm_eps: Annotated[float, Field(ge=0)] = 1e-6
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Size | None = None
    use_sliding_window: bool = False
    max_window_layers: Annotated[int, Field(ge=0)] = 0
    layer_types: list[str] | None = None
    eos_token_id: int | list[int] | None = None


CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"


def spec_from_config(
    config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str, where: str
) -> ModelSpec:
    """Validate a config and describe the model.

    Args:
        config: parsed config.json.
        generation: parsed generation_config.json, or empty.
        dtype: of the model to build, already settled.
        where: path of config.json, for messages.

    Raises:
        ModelError: unsupported architecture, activation, rope or quantisation; bad sizes.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise ModelError(f"{where}: architectures must list one name, not {names!r}")
    plugin = find_plugin(names[0], where)
    traits = plugin.traits
    sizes = _sizes({**traits.get("defaults", {}), **config}, where)
    _check_features(config, sizes, where)
    head_dim = sizes.head_dim or traits.get("head_dim") or _derived_head_dim(sizes, where)
    kv_heads = sizes.num_key_value_heads or sizes.num_attention_heads
    if sizes.num_attention_heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{where}: {sizes.num_attention_heads} heads need a divisor of that as "
            f"num_key_value_heads (got {kv_heads}) and an even head_dim (got {head_dim})"
        )
    rope = read_rope(config, sizes.max_position_embeddings, where)
    max_position, position_limit = _lengths(sizes, rope)

    eos = _eos(generation.get("eos_token_id"), sizes.eos_token_id, where)
    eos_from = CONFIG if generation.get("eos_token_id") is None else GENERATION_CONFIG

    def switched(trait: str) -> bool:
        value = traits.get(trait, False)
        return bool(getattr(sizes, value)) if isinstance(value, str) else value

    return ModelSpec(
        architecture=names[0],
        dtype=dtype,
        vocab_size=sizes.vocab_size,
        num_layers=sizes.num_hidden_layers,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_q_heads=sizes.num_attention_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=max_position,
        position_limit=position_limit,
        windows=_windows(traits.get("window"), sizes, position_limit, where),
        rms_norm_eps=sizes.rms_norm_eps,
        rope=rope,
        tie_embeddings=sizes.tie_word_embeddings,
        qkv_bias=switched("qkv_bias"),
        o_bias=switched("o_bias"),
        mlp_bias=switched("mlp_bias"),
        qk_norm=switched("qk_norm"),
        eos_token_ids=eos,
        eos_from=(eos_from,) * len(eos),
        generation_defaults=_sampling_defaults(generation),
    )


def _sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling that the checkpoint asks for; `do_sample: false` is greedy."""
    found = {key: generation[key] for key in _GENERATION_KEYS if generation.get(key) is not None}
    return {"temperature": 0.0} if generation.get("do_sample") is False else found


def config_dtype(config: Mapping[str, Any]) -> str | None:
    """The checkpoint's type by its config: `dtype` (v5) or `torch_dtype` (v4); None if unsaid."""
    value = config.get("dtype") or config.get("torch_dtype")
    return None if value is None else str(value).removeprefix("torch.")


def check_dtype(dtype: str, where: str) -> str:
    """Raises: ModelError where the runtime does not compute in that type."""
    if dtype not in DTYPE_BYTES:
        raise ModelError(
            f"{where}: the checkpoint's dtype {dtype} is not one the runtime computes in; set "
            f"model.dtype to one of {', '.join(DTYPE_BYTES)}"
        )
    return dtype


def _sizes(config: Mapping[str, Any], where: str) -> _Sizes:
    known = {key: config[key] for key in _Sizes.model_fields if config.get(key) is not None}
    try:
        return _Sizes.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        key = first["loc"][0] if first["loc"] else "config"
        raise ModelError(
            f"{where}: {key}: {first['msg']} (got {first.get('input')!r})"
            if first["type"] != "missing"
            else f"{where}: the key {key} is missing"
        ) from None


def _check_features(config: Mapping[str, Any], sizes: _Sizes, where: str) -> None:
    if sizes.hidden_act not in ACTIVATIONS:
        raise ModelError(
            f"{where}: unsupported hidden_act {sizes.hidden_act!r}; "
            f"supported: {', '.join(ACTIVATIONS)}"
        )
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else ""
        raise ModelError(
            f"{where}: quantized checkpoints ({method or 'quantization_config'}) are not "
            "supported; use a float32, bfloat16 or float16 checkpoint, or a GGUF file"
        )


def _derived_head_dim(sizes: _Sizes, where: str) -> int:
    if sizes.hidden_size % sizes.num_attention_heads:
        raise ModelError(
            f"{where}: hidden_size {sizes.hidden_size} is not a multiple of num_attention_heads "
            f"{sizes.num_attention_heads}, and head_dim is not given"
        )
    return sizes.hidden_size // sizes.num_attention_heads


def _lengths(sizes: _Sizes, rope: RopeSpec) -> tuple[int, int]:
    stated = sizes.max_position_embeddings
    if rope.type == "yarn":
        stated = max(stated, int(rope.original_max_position * rope.factor))
    return stated, int(stated * rope.factor) if rope.type == "linear" else stated


def _windows(
    rule: str | None, sizes: _Sizes, position_limit: int, where: str
) -> tuple[int | None, ...]:
    """A window as long as any context is no window."""
    layers, window = sizes.num_hidden_layers, sizes.sliding_window
    if window is not None and window >= position_limit:
        window = None
    if rule == "all_layers":
        return (window,) * layers
    if rule != "layer_types":
        return (None,) * layers
    if not sizes.use_sliding_window:
        window = None
    types = sizes.layer_types or [
        "full_attention" if layer < sizes.max_window_layers else "sliding_attention"
        for layer in range(layers)
    ]
    allowed = {"full_attention": None, "sliding_attention": window}
    unknown = sorted(set(types) - set(allowed))
    if unknown or len(types) != layers:
        raise ModelError(
            f"{where}: layer_types must name {layers} layers, each one of {', '.join(allowed)}; "
            f"got {len(types)}" + (f" with {', '.join(unknown)}" if unknown else "")
        )
    return tuple(allowed[kind] for kind in types)


def _eos(generation: Any, config: int | list[int] | None, where: str) -> tuple[int, ...]:
    value = config if generation is None else generation
    ids = [value] if isinstance(value, int) else (value or [])
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelError(f"{where}: eos_token_id must be an id or a list of ids, not {value!r}")
    return tuple(dict.fromkeys(ids))
