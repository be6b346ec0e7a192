"""Steps that are launched ahead of the tokens before them: the same tokens, by the real engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attention_backends import NUM_RESERVED_BLOCKS, AttentionBackend
from runtime.data.params import SamplingParams
from runtime.data.request import Request
from runtime.models import LoadedModel
from runtime.runner import ModelRunner
from tools._gpu_check.able import able_backends, refusal_of
from tools._gpu_check.batches import random_tokens
from tools._gpu_check.idle import make_engine
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale, spec_of
from tools._gpu_check.subject import exact_settings, load, runner_of

GREEDY = {"temperature": 0.0}
ALONE_OR_NOT = [
    GREEDY,
    {"temperature": 1.0, "seed": 3},
]
"""Params under which steps are the same with and without overlap, as long as nothing is preempted:
their tokens are equal in any type."""
ANY = [
    GREEDY,
    {"temperature": 0.9, "top_p": 0.9, "seed": 11},
    {"temperature": 1.0, "seed": 3, "stop_token_ids": list(range(3, 43))},
    {"temperature": 0.8, "min_p": 0.05, "top_k": 20, "seed": 5},
    {"temperature": 0.0, "repetition_penalty": 1.3, "max_tokens": 4},
]
"""Those that end at any token, or need theirs on the host first: with overlap, steps hold other
requests, and rounding may differ. In float32 it does not reach the tokens."""
NUM_REQUESTS = 6
TIGHT_BLOCKS = 9
"""Too few for what runs at once, enough for the longest request."""


class Place(NamedTuple):
    name: str
    params: list[dict[str, Any]]
    num_blocks: int
    """usable"""
    expects_preemption: bool


class Outcome(NamedTuple):
    outputs: list[tuple[list[int], Any, str | None]]
    """(tokens, why it ended, error) of each request"""
    steps: int
    steps_ahead: int
    preemptions: int
    hit_tokens: int


def check_overlap(scale: Scale, report: Report, deadline: Deadline) -> None:
    """A line for each backend, type and place."""
    decode, mixed = scale.decode_mode, scale.mixed_modes[0]
    for dtype in scale.exact_dtypes:
        loaded = load(spec_of({**scale.exact_config, "torch_dtype": dtype}), scale.device)
        for name, backend, block_size in able_backends(
            loaded.attention_shapes, scale, "exact", report
        ):
            line = f"{name} {dtype} overlap"
            if deadline.is_over:
                report.skip("exact", line, "time limit")
            elif reason := refusal_of(decode, mixed, loaded, backend, block_size):
                report.skip("exact", line, reason)
            else:
                with report.guard("exact", line):
                    _check(line, scale, loaded, backend, block_size, report)


def _check(
    line: str,
    scale: Scale,
    loaded: LoadedModel,
    backend: type[AttentionBackend],
    block_size: int,
    report: Report,
) -> None:
    roomy = NUM_REQUESTS * -(-_longest(block_size) // block_size)
    roomy = max(roomy, -(-scale.exact_context // block_size))
    places = [Place("roomy", ALONE_OR_NOT, roomy, expects_preemption=False)]
    if loaded.spec.dtype == "float32":
        places.append(Place("preempted", ANY, TIGHT_BLOCKS, expects_preemption=True))
    config = exact_settings(scale, scale.decode_mode, scale.mixed_modes[0])
    with runner_of(
        config,
        loaded,
        backend,
        block_size=block_size,
        num_blocks=max(place.num_blocks for place in places),
    ) as runner:
        for place in places:
            found = [run_waves(runner, config, place, block_size, on) for on in (False, True)]
            _judge(report, f"{line}, {place.name}", place, *found)


def run_waves(
    runner: ModelRunner, config: Any, place: Place, block_size: int, overlap: bool
) -> Outcome:
    """Requests that share a prefix, all at once; then some of them again. What a run before has
    left in the runner must not help."""
    vocab_size = runner.sampler.vocab_size
    runner.states.token_ids[:] = 0
    for kv in runner.kv:
        kv.k[NUM_RESERVED_BLOCKS:].normal_()
        kv.v[NUM_RESERVED_BLOCKS:].normal_()
    engine = make_engine(
        runner,
        config,
        vocab_size=vocab_size,
        block_size=block_size,
        num_blocks=place.num_blocks,
        overlap=overlap,
        max_model_len=_longest(block_size) + 1,
        prefix_caching=True,
    )
    requests = _requests(place, block_size, vocab_size)
    for wave in (requests[:NUM_REQUESTS], requests[NUM_REQUESTS:]):
        for request in wave:
            engine.add(request)
        while engine.has_unfinished():
            engine.step()
    engine.step()  # collects what is in flight
    stats = engine.scheduler.stats
    return Outcome(
        [(r.output_token_ids, r.finish_reason, r.error) for r in requests],
        stats.steps,
        stats.steps_ahead,
        stats.preemptions,
        stats.prefix_hit_tokens,
    )


def _requests(place: Place, block_size: int, vocab_size: int) -> list[Request]:
    rng = np.random.default_rng(4)
    prefix = random_tokens(rng, 2 * block_size + 3, vocab_size)
    tails = [random_tokens(rng, 3 * i + 1, vocab_size) for i in range(NUM_REQUESTS)]
    prompts = [prefix + tail for tail in [*tails, *tails[:2]]]
    requests = []
    for i, prompt in enumerate(prompts):
        changes = place.params[i % len(place.params)]
        params = SamplingParams(**{"max_tokens": _num_output(i), **changes})
        requests.append(Request(f"r{i}", prompt, params))
    return requests


def _num_output(index: int) -> int:
    return 30 + index


def _longest(block_size: int) -> int:
    """Tokens of the longest request."""
    return 2 * block_size + 3 + 3 * NUM_REQUESTS + _num_output(NUM_REQUESTS + 1)


def _judge(report: Report, line: str, place: Place, without: Outcome, ahead: Outcome) -> None:
    differing = sum(a != b for a, b in zip(without.outputs, ahead.outputs, strict=True))
    errors = sorted({error for _, _, error in (*without.outputs, *ahead.outputs) if error})
    happened = {
        "a step was launched ahead where none may be": without.steps_ahead > 0,
        "no step was launched ahead": ahead.steps_ahead == 0,
        "no prefix was hit": min(without.hit_tokens, ahead.hit_tokens) == 0,
        "nothing was preempted": place.expects_preemption
        and min(without.preemptions, ahead.preemptions) == 0,
        "requests got other tokens": differing > 0,
    }
    reasons = [*errors, *(what for what, is_so in happened.items() if is_so)]
    report.check(
        "exact",
        line,
        not reasons,
        "; ".join(reasons),
        requests=len(without.outputs),
        differing=differing,
        steps=ahead.steps,
        ahead=ahead.steps_ahead,
        preemptions=ahead.preemptions,
        hit_tokens=ahead.hit_tokens,
    )
