"""Each bucket of a runner run once, replayed and eager, over the most keys that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphs import GraphKey, Kind
from runtime.data.step import NewRow, SchedulerOutput
from runtime.runner import ModelRunner
from tools._gpu_check.batches import FIRST_BLOCK, GREEDY
from tools._gpu_check.op_numerics import error_of
from tools._gpu_check.scale import Scale
from tools._gpu_check.subject import Recorder
from tools._steps import Part, run_eagerly, step_of

KEY_SCALE = 2.0
"""Of random keys: weights that few of them have, so that it shows which keys were read."""
MOST_DECODES = 8
"""Beside the chunk of a step with one."""


@dataclass(slots=True)
class Sweep:
    """What was found, by the bucket's name."""

    errors: dict[str, float] = field(default_factory=dict)
    """of a step's logits; no entry where another bucket or none served it"""
    row_errors: dict[str, float] = field(default_factory=dict)
    """of the worst row"""
    missing: list[str] = field(default_factory=list)
    """buckets that steps can have and that were not run"""
    kinds: set[str] = field(default_factory=set)
    kv_classes: set[int] = field(default_factory=set)
    splits: set[int] = field(default_factory=set)
    """parts into which plans split keys, where they tell"""
    most_keys: int = 0


def num_sweep_blocks(scale: Scale, block_size: int) -> int:
    """Usable blocks that `sweep_buckets` needs."""
    return _num_shared(scale, block_size) + 2 * scale.exact_rows + _blocks(scale, block_size)


def sweep_buckets(runner: ModelRunner, recorder: Recorder, scale: Scale, block_size: int) -> Sweep:
    """Run every bucket that a step can have; nothing is expected of requests in the runner."""
    rng, found = np.random.default_rng(1), Sweep()
    dispatcher = runner.graphs.dispatcher
    known = runner.states.token_ids
    known[:] = rng.integers(3, recorder.loaded.spec.vocab_size, known.shape)
    for kv in runner.kv:
        kv.k[FIRST_BLOCK:].normal_(0, KEY_SCALE)
        kv.v[FIRST_BLOCK:].normal_()
    keys = dispatcher.capture_keys()
    has_decode = any(key.kind is Kind.DECODE for key in keys)
    for key in keys:
        if key.kind is not Kind.DECODE and has_decode and key.num_tokens == 1:
            continue  # a step of one token is a decode step
        smaller = max(
            (n for n in dispatcher.buckets(key.kind).sizes if n < key.num_tokens), default=0
        )
        parts = _parts_for(key, smaller, scale)
        so = _enter(runner, parts, scale, block_size)
        _run_both(runner, recorder, so, key, _num_shared(scale, block_size), found)
    return found


def _parts_for(key: GraphKey, smaller: int, scale: Scale) -> list[Part]:
    """A step that the bucket serves, padded where it can be.

    Args:
        smaller: the next smaller bucket's size.
    """
    # one less than may be, so that the token that it samples has a place
    bound = min(key.kv_class or scale.exact_context, scale.exact_context - 1)
    count = max(smaller + 1, key.num_tokens - 1)
    if key.kind is Kind.DECODE or count == 1:
        lengths = [bound, *((i * 379) % bound + 1 for i in range(1, count))]
        return [Part(length - 1, 1) for length in lengths]
    decodes = min(count // 4, MOST_DECODES, scale.exact_rows - 1)
    chunk = count - decodes
    lengths = [bound, *((i * 379) % bound + 1 for i in range(1, decodes))][:decodes]
    computed = (bound - chunk) // 2 if decodes else bound - chunk
    return [*(Part(length - 1, 1) for length in lengths), Part(computed, chunk)]


def _enter(
    runner: ModelRunner, parts: Sequence[Part], scale: Scale, block_size: int
) -> SchedulerOutput:
    """Requests whose old blocks are shared, and whose new tokens go to blocks of their own."""
    shared, new = _num_shared(scale, block_size), []
    own = FIRST_BLOCK + shared
    for row, part in enumerate(parts):
        whole = part.num_computed // block_size
        num_own = _ceil(part.num_computed + part.num_scheduled, block_size) - whole
        blocks = FIRST_BLOCK + (row * 7 + np.arange(whole)) % shared
        blocks = [*blocks.tolist(), *range(own, own + num_own)]
        own += num_own
        new.append(NewRow(row, f"r{row}", [], 1, 0, blocks, GREEDY, ()))
    every_row = range(len(runner.states.num_blocks))
    runner._apply(step_of([], [], new=new, freed=every_row))
    return step_of(range(len(parts)), parts)


def _run_both(
    runner: ModelRunner,
    recorder: Recorder,
    so: SchedulerOutput,
    key: GraphKey,
    num_shared: int,
    found: Sweep,
) -> None:
    """The replay must write its K/V itself: what the eager step wrote is taken back."""
    buckets, name = runner.graphs.stats().buckets, str(key)
    found.kinds.add(key.kind.value)
    before = buckets[name]
    own = [cache[FIRST_BLOCK + num_shared :] for kv in runner.kv for cache in kv]
    unwritten = [cache.clone() for cache in own]
    with run_eagerly(runner):
        runner.execute(so)
    eager = recorder.logits[-1].double()
    for cache, saved in zip(own, unwritten, strict=True):
        cache.copy_(saved)
    ro = runner.execute(so)
    is_captured = not runner.graphs.captures(key) or key.graph in _captured(runner)
    if buckets[name] != before + 1 or ro.shape.kind != key.kind.value or not is_captured:
        found.missing.append(name)
        return
    replayed = recorder.logits[-1].double()
    found.errors[name] = error_of(replayed, eager)
    found.row_errors[name] = _worst_row(replayed, eager)
    found.kv_classes |= {key.kv_class} - {0}
    found.most_keys = max(
        found.most_keys, int((so.num_computed_tokens + so.num_scheduled_tokens).max())
    )
    forward = runner._forwards.get(key.graph)
    if forward is not None:
        found.splits |= splits_of(forward.plan)


def _captured(runner: ModelRunner) -> set[GraphKey]:
    records = runner.graphs.report.records
    return {GraphKey(Kind(r.kind), r.num_tokens, r.num_reqs, r.kv_class) for r in records}


def splits_of(plan: Any) -> set[int]:
    """Into how many parts the plan splits keys; nothing where it does not tell."""
    launches = getattr(plan, "launches", [plan])
    return {n for launch in launches if (n := getattr(launch, "num_splits", 0))}


def _worst_row(out: Tensor, reference: Tensor) -> float:
    errors = (out - reference).norm(dim=1) / reference.norm(dim=1)
    return float(errors.nan_to_num(torch.inf).max())


def _num_shared(scale: Scale, block_size: int) -> int:
    return _ceil(scale.exact_context, block_size)


def _blocks(scale: Scale, block_size: int) -> int:
    return _ceil(scale.exact_budget, block_size)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)
