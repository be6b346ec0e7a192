"""`stepgraph check`: what would run here, and why or why not, without reading a weight."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from runtime.cli.exit_codes import OK, exit_code_of
from runtime.cli.interrupts import held
from runtime.cli.options import add_config_arguments, load_config, log_to_stderr
from runtime.models import weight_bytes

if TYPE_CHECKING:
    import torch

    from attention_backends import AttentionShape, Support
    from runtime.config import RunConfig
    from runtime.machine.threads import StepThreads
    from runtime.models import ModelSpec
    from runtime.text import Tokenizer

SUMMARY = "say what would run on this machine, and why or why not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Report on the machine, and with a model on it; the exit status is that of `generate`."""
    with held():
        import numpy  # noqa: F401  # before torch, which imports it while it loads itself

        from runtime import models, runner, text  # noqa: F401
        from runtime.cli.machine import machine_facts, versions
        from runtime.errors import StepgraphError
        from runtime.front import build  # noqa: F401

    log_to_stderr(logging.WARNING)
    _section("machine", machine_facts())
    _section("versions", versions())
    if args.config is None and args.model is None and not _is_model_set(args.sets):
        _backends_for_typical_model()
        print("verdict: no model was given; add --config F.yaml or --model PATH")
        return OK
    try:
        _check_run(load_config(args)[0])
    except StepgraphError as error:
        print(f"verdict: cannot run: {error}")
        return exit_code_of(error)
    print("verdict: ready")
    return OK


def _check_run(config: RunConfig) -> None:
    """Everything that opening a Runtime would decide, in the same order, without the weights."""
    from runtime.front.build import resolve_max_model_len
    from runtime.front.early import check_early
    from runtime.front.eos import with_eos
    from runtime.models import attention_shapes, check_files, check_linear_path, read_spec
    from runtime.runner import choose_backends, size_kv_pool
    from runtime.text import load_tokenizer

    device, threads = check_early(config)
    _section("threads", _thread_facts(threads))
    spec = read_spec(config.model, device)
    _section("model", _model_facts(config, spec))
    check_files(config.model, spec)
    tokenizer = load_tokenizer(config.model)
    _section("tokenizer", _tokenizer_facts(tokenizer))
    _section("EOS", _eos_facts(with_eos(spec, tokenizer), tokenizer))
    shapes = attention_shapes(spec)
    wanted = config.cache.block_size
    block_size = wanted if isinstance(wanted, int) else None
    _print_backends("for this model", shapes, block_size, device)
    choice = choose_backends(config.attention, shapes, block_size, device)
    check_linear_path(spec, device)
    _section("paths of linear layers, measured with one thread", _path_facts(spec, device))
    _check_graphs(config, choice.support, device, _no_kernels(spec, device))
    _check_weights(spec, device)
    weights = weight_bytes(spec)
    num_blocks = size_kv_pool(config, spec, choice.block_size, device, weights_to_come=weights)
    length = resolve_max_model_len(config, spec, num_blocks, choice.block_size)
    facts = _pool_facts(spec, choice.block_size, num_blocks, length)
    bound = " (at most: what runs beside it is measured at the start)"
    _section(f"KV pool{bound if device.type == 'cuda' else ''}", facts)


def _check_graphs(
    config: RunConfig, support: Support, device: torch.device, no_kernels: str
) -> None:
    """Choose both graph modes.

    Raises:
        BackendError: one cannot serve, with every mode's reason.
    """
    from runtime.cli.debug_keys import debug_facts
    from runtime.runner import check_modes

    decode, mixed = check_modes(config.graphs, support, device)
    _section("graph modes", [("decode", decode.name), ("mixed", mixed.name)])
    _section("debug keys", debug_facts(config, decode, mixed, no_kernels))


def _check_weights(spec: ModelSpec, device: torch.device) -> None:
    """They must fit in what is free now.

    Raises:
        ModelError: they do not.
    """
    from runtime.config import format_memory
    from runtime.errors import ModelError
    from runtime.models import smaller_weights
    from runtime.runner import free_memory_bytes

    free = free_memory_bytes(device)
    if weight_bytes(spec) > free:
        raise ModelError(
            f"the weights take {format_memory(weight_bytes(spec))}, and {format_memory(free)} are "
            f"free on {device}: {smaller_weights(spec)}"
        )


def _model_facts(config: RunConfig, spec: ModelSpec) -> Iterable[tuple[str, str]]:
    from runtime.config import format_memory

    yield "path", config.model.path
    yield "architecture", f"{spec.architecture}, {spec.dtype}"
    yield (
        "sizes",
        f"{spec.num_layers} layers, hidden {spec.hidden_size}, {spec.num_q_heads} query and "
        f"{spec.num_kv_heads} KV heads of {spec.head_dim}, vocabulary {spec.vocab_size}",
    )
    yield "longest request", f"{spec.max_position} tokens"
    yield "weights", f"{weight_bytes(spec):,} bytes ({format_memory(weight_bytes(spec))})"
    yield "KV", f"{spec.kv_bytes_per_token:,} bytes per token"


def _no_kernels(spec: ModelSpec, device: torch.device) -> str:
    import torch

    from runtime.ops import kernel_problem

    return kernel_problem(device, getattr(torch, spec.dtype))


def _path_facts(spec: ModelSpec, device: torch.device) -> Iterable[tuple[str, str]]:
    from runtime.models import matrix_inputs
    from runtime.ops import path_facts

    problem = _no_kernels(spec, device)
    if problem:
        return [("torch", f"no native kernel: {problem}")]
    return path_facts(matrix_inputs(spec), spec.linear_path)


def _thread_facts(threads: StepThreads) -> Iterable[tuple[str, str]]:
    from runtime.config import format_cores

    yield "of a step", str(threads.count)
    yield "cores", format_cores(threads.cores) if threads.cores else "not bound"


def _tokenizer_facts(tokenizer: Tokenizer | None) -> Iterable[tuple[str, str]]:
    if tokenizer is None:
        yield "vocabulary", "none: only token ids can be served"
        return
    yield "vocabulary", f"{tokenizer.vocab_size} tokens"
    yield "chat template", "yes" if tokenizer.has_chat_template else "none: prompts only"


def _eos_facts(spec: ModelSpec, tokenizer: Tokenizer | None) -> Iterable[tuple[str, str]]:
    if not spec.eos_token_ids:
        yield "none", "no file names one: answers end by stop, stop_token_ids or max_tokens"
    for token_id, where in zip(spec.eos_token_ids, spec.eos_from, strict=True):
        piece = tokenizer.piece(token_id) if tokenizer is not None else None
        yield str(token_id), f"{piece or 'no piece'}, by {where}"


def _pool_facts(
    spec: ModelSpec, block_size: int, num_blocks: int, length: int
) -> Iterable[tuple[str, str]]:
    from attention_backends import NUM_RESERVED_BLOCKS
    from runtime.config import blocks_for, format_memory

    size = (num_blocks + NUM_RESERVED_BLOCKS) * block_size * spec.kv_bytes_per_token
    yield "size", f"{size:,} bytes ({format_memory(size)})"
    yield "blocks", f"{num_blocks:,} usable of {block_size} tokens: {num_blocks * block_size:,}"
    yield "max_model_len", f"{length:,} tokens"
    together = num_blocks // blocks_for(length, block_size)
    yield "at that length", f"{together:,} requests at once"


def _backends_for_typical_model() -> None:
    import torch

    from attention_backends import AttentionShape

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = AttentionShape(32, 8, 128, dtype, dtype, scale=128**-0.5)
    what = f"for a typical model: 32 query and 8 KV heads of 128, {str(dtype)[6:]}"
    _print_backends(what, [shape], None, device)


def _print_backends(
    what: str, shapes: list[AttentionShape], block_size: int | None, device: torch.device
) -> None:
    from attention_backends import examine_all

    answers = examine_all(shapes, block_size, device)
    rows = [(name, _answer(support)) for name, support in answers.items()]
    _section(f"attention backends, {what}, on {device}", rows)


def _answer(support: Support) -> str:
    if not support.ok:
        return f"unable: {support.reason}"
    multiple = support.block_size_multiple
    sizes = "any block size" if multiple == 1 else f"block sizes in multiples of {multiple}"
    graphs = support.graph.name.lower().replace("_", " ")
    return f"able: {sizes}, prefers {support.preferred_block_size}; graphs: {graphs}"


def _is_model_set(sets: list[str]) -> bool:
    from runtime.config import environment_name

    named = any(text.startswith("model.path=") for text in sets)
    return named or environment_name(("model", "path")) in os.environ


def _section(title: str, rows: Iterable[tuple[str, str]]) -> None:
    print(title)
    listed = list(rows)
    width = max([18, *(len(name) for name, _ in listed)])
    for name, fact in listed:
        print(f"  {name:<{width}} {fact}")
    print(flush=True)
