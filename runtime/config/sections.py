"""The sections of a configuration: names, types, defaults, and what each means.

Types are strict: "16" is no number and `yes` is no boolean. `auto` is written out where the runtime
may choose.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from runtime.config.model_path import resolve_model_path
from runtime.config.problems import Key, Problem, ProblemsError
from runtime.config.section import Section
from runtime.config.units import parse_cores, parse_memory

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1)]
ModelPath = Annotated[str, AfterValidator(resolve_model_path)]


def _checked_memory(value: int | str) -> int | str:
    if value == "auto":
        return value
    try:
        return parse_memory(value)
    except ValueError as error:
        raise ValueError(str(error).replace("must be ", "must be auto or ", 1)) from None


Memory = Annotated[PositiveInt | Auto, BeforeValidator(_checked_memory)]


def _checked_cores(value: object) -> object:
    if isinstance(value, bool):
        return value
    text = str(value)  # YAML: a single core is a number
    parse_cores(text)
    return text


Cores = Annotated[bool | str, BeforeValidator(_checked_cores)]


class ModelConfig(Section):
    yaml_key: ClassVar[Key] = ("model",)

    path: ModelPath = Field(
        description="Hugging Face folder, .gguf file, or (dummy weights) folder or config.json; "
        "package:NAME/FILE is a file inside an installed Python package"
    )
    format: Literal["auto", "hf", "gguf", "dummy"] = "auto"
    tokenizer: ModelPath | None = Field(
        None, description="tokenizer folder or .gguf, where it is not beside the model"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: the checkpoint's"
    )
    quantization: Literal["auto", "none", "int8", "q8_0"] = Field(
        "auto",
        description="auto: quantised matrices of a GGUF file stay as they are where native kernels "
        "read them; none: nowhere; q8_0: those in Q8_0, everywhere; int8: projections and a tied "
        "embedding cut to 8 bits at load, a scale for each output",
    )
    linear_path: Literal["auto", "float", "dot", "tiles", "vnni"] = Field(
        "auto",
        description="debug: how native CPU kernels multiply; auto: the fastest as measured here; "
        "another is taken for the weights that it serves",
    )
    max_model_len: Annotated[int, Field(ge=2)] | Auto = Field(
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
    yaml_key: ClassVar[Key] = ("scheduler",)

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
    yaml_key: ClassVar[Key] = ("cache",)

    block_size: PositiveInt | Auto = Field(
        "auto", description="tokens of a KV block; auto: what the backend prefers"
    )
    memory: Memory = Field(
        "auto",
        description="bytes of the KV pool: a number, or 4GiB; auto: what max_num_seqs requests can "
        "use, within a share of what is free, and about 4 GiB on a CPU",
    )
    num_blocks: PositiveInt | None = Field(
        None, description="usable KV blocks, where memory is auto"
    )
    prefix_caching: bool = True
    hash: Literal["xxh3_128", "sha256"] = "xxh3_128"


class AttentionConfig(Section):
    yaml_key: ClassVar[Key] = ("attention",)

    backend: str = Field("auto", description="a file name of attention_backends/, or auto")
    prefill_backend: str | None = Field(
        None, description="another one for steps with prompt chunks, of the same KV layout"
    )
    decode_backend: str | None = Field(
        None, description="another one for steps with one token a request, of the same KV layout"
    )


class GraphsConfig(Section):
    yaml_key: ClassVar[Key] = ("graphs",)

    decode: str = Field(
        "auto", description="graph mode of steps with one token a request: a file name of graphs/"
    )
    mixed: str = Field("auto", description="graph mode of every other step")
    sizes: list[int] | Auto = Field("auto", description="token buckets; the maximum is always one")
    lazy_after: Annotated[int, Field(ge=0)] = Field(
        0, description="0: every graph is captured at the start; k: each at its k-th use"
    )
    check_addresses: bool = Field(
        False, description="before each replay, check that no buffer has moved (slow)"
    )
    compare_every: Annotated[int, Field(ge=0)] = Field(
        0,
        description="run every n-th replay eagerly too and demand equal results, but for the "
        "rounding of the model's type; 0 is off",
    )

    @model_validator(mode="after")
    def _sizes_sensible(self) -> GraphsConfig:
        why = "" if self.sizes == "auto" else _refuse_sizes(self.sizes)
        if why:
            raise ProblemsError([Problem(("sizes",), why)])
        return self


def _refuse_sizes(sizes: list[int]) -> str:
    if not sizes:
        return "must not be empty; for no graphs, set graphs.decode and graphs.mixed to eager"
    wrong = [n for n in sizes if n < 1]
    if wrong:
        return f"must be integers >= 1, got {wrong}"
    twice = sorted({n for n in sizes if sizes.count(n) > 1})
    return f"must be distinct, got {twice} more than once" if twice else ""


class EngineConfig(Section):
    yaml_key: ClassVar[Key] = ("engine",)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt | Auto = Field(
        "auto",
        description="CPU threads of a step; auto: OMP_NUM_THREADS, else the cores that affinity "
        "and the cgroup's quota grant",
    )
    bind_cores: Cores = Field(
        False,
        description='true: each thread keeps to a core of its own; "0-3,8": to these, in order',
    )
    overlap: bool | Auto = Field(
        "auto",
        description="schedule and launch a step while the one before runs; auto: on for CUDA",
    )
    check_integrity: bool = Field(
        False, description="check pool and scheduler after every step (slow)"
    )
    padding_canary: bool = Field(
        False, description="poison padded rows and demand equal results (slow)"
    )
