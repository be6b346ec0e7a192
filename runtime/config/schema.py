"""The configuration's sections: names, types, defaults, and what each means.

Settled at the door, never written back.

Types are strict: "16" is no number and `yes` is no boolean. `auto` is written out where the runtime
may choose.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ModelConfig(Section):
    path: str = Field(
        description="Hugging Face folder, .gguf file, or (dummy weights) folder or config.json"
    )
    format: Literal["auto", "hf", "gguf", "dummy"] = "auto"
    tokenizer: str | None = Field(
        None, description="tokenizer folder or .gguf, where it is not beside the model"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: the checkpoint's"
    )
    max_model_len: PositiveInt | Auto = Field(
        "auto",
        description="longest prompt + output; auto: the model's, reduced to what the KV pool holds",
    )
    cache_dir: str | None = Field(
        None,
        description="where converted GGUF weights are kept; "
        "null: $STEPGRAPH_CACHE_DIR or ~/.cache/stepgraph",
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of dummy weights")


class SchedulerConfig(Section):
    policy: Literal["mixed", "prefill_first"] = "mixed"
    order: Literal["fcfs", "priority"] = "fcfs"
    max_num_batched_tokens: PositiveInt = Field(2048, description="token budget of a step")
    max_num_seqs: PositiveInt = Field(64, description="most requests that run at once")
    chunked_prefill: bool = Field(
        True, description="false: a prompt runs whole, budget >= max_model_len"
    )
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = Field(
        0, description="most tokens of one request in a step; 0 is off"
    )
    watermark: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="share of blocks kept free at admission"
    )


class CacheConfig(Section):
    block_size: PositiveInt | Auto = Field(
        "auto", description="tokens of a KV block; auto: what the backend prefers"
    )
    memory: PositiveInt | str = Field(
        "auto",
        description='bytes of the KV pool: a number, or "4GiB"; auto: a share of what is free',
    )
    num_blocks: PositiveInt | None = Field(None, description="usable KV blocks; overrides memory")
    prefix_caching: bool = True
    hash: Literal["xxh3_128", "sha256"] = "xxh3_128"


class AttentionConfig(Section):
    backend: str = Field("auto", description="a file name of attention_backends/, or auto")


class GraphsConfig(Section):
    decode: str = Field(
        "auto", description="graph mode of steps with one token a request: a file name of graphs/"
    )
    mixed: str = Field("auto", description="graph mode of every other step")
    sizes: list[int] | Auto = Field("auto", description="token buckets; the maximum is always one")


class EngineConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt | Auto = Field(
        "auto", description="CPU threads of the forward; auto: what the cgroup grants"
    )
    check_integrity: bool = Field(
        False, description="check pool and scheduler after every step (slow)"
    )
    padding_canary: bool = Field(
        False, description="poison padded rows and demand equal results (slow)"
    )


class RuntimeConfig(Section):
    """Everything that a Runtime needs; `Runtime(RuntimeConfig(model=ModelConfig(path=...)))`."""

    model: ModelConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    cache: CacheConfig = CacheConfig()
    attention: AttentionConfig = AttentionConfig()
    graphs: GraphsConfig = GraphsConfig()
    engine: EngineConfig = EngineConfig()


class RequestConfig(Section):
    """One entry of a run file's `requests`: exactly one of prompt, chat, token_ids."""

    prompt: str | None = None
    chat: list[dict[str, Any]] | None = None
    token_ids: list[int] | None = None
    sampling: dict[str, Any] = Field(
        default_factory=dict, description="changes to the run's sampling"
    )
    priority: int = 0
    cache_salt: str | None = None


class RunConfig(RuntimeConfig):
    """A whole YAML run: the runtime and the work.

    The file name is the purpose or the hardware.
    """

    sampling: dict[str, Any] = Field(
        default_factory=dict, description="SamplingParams of every request"
    )
    requests: list[RequestConfig] = Field(default_factory=list)
