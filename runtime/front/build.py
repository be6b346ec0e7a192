"""From a settled configuration to a running engine: device, model, backend, KV pool, limits, in
this order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from attention_backends import Choice
from runtime.config import RuntimeConfig, check_limits
from runtime.engine import Engine
from runtime.front.early import check_early
from runtime.front.eos import with_eos
from runtime.front.tracing import trace_facts, with_trace
from runtime.machine.threads import StepThreads
from runtime.models import (
    LoadedModel,
    ModelSpec,
    attention_shapes,
    check_files,
    load_model,
    read_spec,
)
from runtime.observe.steps import StepObserver
from runtime.ops.native import native_ops
from runtime.runner import (
    ModelRunner,
    check_modes,
    choose_backends,
    measure_footprint,
    size_kv_pool,
)
from runtime.sampling import Grammars, Sampler
from runtime.scheduler import Scheduler
from runtime.text import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What `build_engine` made."""

    engine: Engine
    observer: StepObserver | None
    runner: ModelRunner
    threads: StepThreads
    spec: ModelSpec
    tokenizer: Tokenizer | None
    grammars: Grammars | None
    """Compiles structured output; None without a tokenizer."""
    block_size: int
    num_blocks: int
    """Usable, the reserved ones excluded."""

    max_model_len: int

    def close(self) -> None:
        """Drop captured graphs and let go of cores; the memory goes with the last reference."""
        self.runner.close()
        self.threads.close()
        if self.observer is not None:
            self.observer.close()


def build_engine(config: RuntimeConfig, observer: StepObserver | None = None) -> Parts:
    """Load the model and wire the engine; with an observer, every step is told to it.

    Raises:
        ConfigError, ModelError, BackendError: with the key or file at fault.
    """
    device, threads = check_early(config)
    threads.set_count()
    described = read_spec(config.model)
    check_files(config.model, described)  # first: it says best what is wrong
    choice, tokenizer = _kernels_and_tokenizer(config, described, device)
    check_modes(config.graphs, choice.support, device)
    loaded = load_model(config.model, device, with_eos(described, tokenizer))
    spec = loaded.spec
    num_ids = min(spec.vocab_size, tokenizer.num_ids) if tokenizer else spec.vocab_size
    grammars = Grammars(tokenizer, spec.vocab_size, spec.eos_token_ids) if tokenizer else None
    block_size = choice.block_size
    make_sampler = partial(Sampler, tokenizer=tokenizer, num_valid_ids=num_ids, grammars=grammars)
    num_blocks = _num_blocks(config, loaded, choice, device, make_sampler)
    max_model_len = resolve_max_model_len(config, spec, num_blocks, block_size)
    runner = ModelRunner(
        config,
        loaded,
        choice.backend,
        device=device,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        make_sampler=make_sampler,
    )
    scheduler = Scheduler(
        config.scheduler,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_caching=config.cache.prefix_caching,
        hash_name=config.cache.hash,
        runs_ahead=resolve_overlap(config.engine.overlap, device),
    )
    about = partial(
        trace_facts,
        *(config, spec, runner),
        device=device,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
    )
    engine = Engine(
        scheduler,
        runner,
        vocab_size=num_ids,
        max_model_len=max_model_len,
        check_integrity=config.engine.check_integrity,
        threads=threads,
        observer=with_trace(config.observe, observer, about),
    )
    return Parts(
        engine=engine,
        observer=engine.observer,
        runner=runner,
        threads=threads,
        spec=spec,
        tokenizer=tokenizer,
        grammars=grammars,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
    )


def _num_blocks(
    config: RuntimeConfig,
    loaded: LoadedModel,
    choice: Choice,
    device: torch.device,
    make_sampler: Callable[..., Sampler],
) -> int:
    """Usable KV blocks: on a GPU beside what is measured of the other parts."""
    footprint = None
    if device.type == "cuda":
        footprint = measure_footprint(
            config,
            loaded,
            choice.backend,
            device=device,
            block_size=choice.block_size,
            make_sampler=make_sampler,
        )
    return size_kv_pool(config, loaded.spec, choice.block_size, device, footprint)


def _kernels_and_tokenizer(
    config: RuntimeConfig, spec: ModelSpec, device: torch.device
) -> tuple[Choice, Tokenizer | None]:
    """The attention backend with every kernel of a CPU ready, and the tokenizer. At the first start
    each takes seconds: kernels are compiled by other processes while a tokenizer is converted.

    A bad tokenizer, and an interrupt, are told at once. The compilation goes on, and the end of the
    interpreter waits for it: what it publishes serves the next start.
    """
    wanted = config.cache.block_size
    block_size = None if wanted == "auto" else wanted
    choose = partial(choose_backends, config.attention, attention_shapes(spec), block_size, device)
    if device.type != "cpu":
        return choose(), load_tokenizer(config.model)

    def compile_and_choose() -> Choice:
        native_ops()
        return choose()

    aside = ThreadPoolExecutor(1)
    try:
        kernels = aside.submit(compile_and_choose)
        tokenizer = load_tokenizer(config.model)
        return kernels.result(), tokenizer
    finally:
        aside.shutdown(wait=False)


def resolve_overlap(wanted: bool | str, device: torch.device) -> bool:
    """Whether a step is scheduled while another one runs; auto is where that hides host work: on a
    CPU both take turns on the same cores."""
    return wanted if isinstance(wanted, bool) else device.type == "cuda"


def resolve_max_model_len(
    config: RuntimeConfig, spec: ModelSpec, num_blocks: int, block_size: int
) -> int:
    """The longest prompt + output: what was asked for, or the model's, reduced to what the pool
    holds. The last token needs no KV slot, so n slots serve n + 1 tokens.

    Raises:
        ConfigError: one request of this length does not fit in the pool, or in the token budget
            where prompts run whole.
    """
    wanted, slots = config.model.max_model_len, num_blocks * block_size
    length = min(spec.max_position, slots + 1) if wanted == "auto" else wanted
    if wanted == "auto" and length < spec.max_position:
        log.info(
            "max_model_len reduced from %d to %d: the KV pool holds %d blocks of %d tokens",
            spec.max_position,
            length,
            num_blocks,
            block_size,
        )
    check_limits(config, max_model_len=length, block_size=block_size, num_blocks=num_blocks)
    return length
