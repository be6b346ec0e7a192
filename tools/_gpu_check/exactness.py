"""Every graph mode on a tiny model: captured and replayed steps give the logits of eager ones."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from torch import Tensor

from attention_backends import AttentionBackend
from runtime.models import LoadedModel
from runtime.runner import ModelRunner
from tools._gpu_check.able import able_backends, refusal_of
from tools._gpu_check.batches import Schedule
from tools._gpu_check.bucket_sweep import Sweep, num_sweep_blocks, sweep_buckets
from tools._gpu_check.op_numerics import error_of
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale, spec_of
from tools._gpu_check.subject import Recorder, exact_settings, load, runner_of

LIMITS = {"float32": 1e-4, "bfloat16": 4e-2, "float16": 1e-2}
"""Of the logits' size: padded products may add in another order."""
ROW_FACTOR = 3.0
"""How much more than the limit one row of a step may be off."""
ROWS = 4
"""Of the schedule: fewer than there are requests."""


class Trace(NamedTuple):
    logits: list[Tensor]
    tokens: list[list[int]]
    buckets: Counter[str]
    """steps by the bucket that served them"""
    eager_reasons: dict[str, int]


def check_modes(scale: Scale, report: Report, deadline: Deadline) -> None:
    """Two lines for each backend, type and pair of modes: requests that share steps, and every
    bucket once."""
    for dtype in scale.exact_dtypes:
        loaded = load(spec_of({**scale.exact_config, "torch_dtype": dtype}), scale.device)
        for name, backend, block_size in able_backends(
            loaded.attention_shapes, scale, "exact", report
        ):
            subject = Subject(scale, loaded, backend, block_size)
            eager: Trace | None = None
            for decode, mixed in _pairs(scale):
                line = f"{name} {dtype} decode={decode} mixed={mixed}"
                if deadline.is_over:
                    report.skip("exact", line, "time limit")
                    continue
                if reason := refusal_of(decode, mixed, loaded, backend, block_size):
                    report.skip("exact", line, reason)
                    continue
                with report.guard("exact", line):
                    if eager is None:
                        eager, _ = subject.run("eager", "eager", None)
                    graph, sweep = subject.run(decode, mixed, eager.tokens)
                    _compare(report, line, eager, graph, sweep, LIMITS[dtype])
                    _judge(report, f"{line}, every bucket", sweep, LIMITS[dtype])


def _pairs(scale: Scale) -> list[tuple[str, str]]:
    pairs = [("padded_eager", "padded_eager")]
    for mixed in scale.mixed_modes:
        pairs.append((mixed if "ragged" in mixed else scale.decode_mode, mixed))
    return pairs


class Subject(NamedTuple):
    """One backend over one model."""

    scale: Scale
    loaded: LoadedModel
    backend: type[AttentionBackend]
    block_size: int

    def run(self, decode: str, mixed: str, tokens: list[list[int]] | None) -> tuple[Trace, Sweep]:
        """The schedule's steps, then each bucket.

        Args:
            tokens: those are taken for what was sampled, so that a tie does not send two runs
                different ways; None takes what was.
        """
        scale, loaded = self.scale, self.loaded
        schedule = Schedule(
            scale.exact_lengths,
            budget=scale.exact_budget,
            max_rows=ROWS,
            block_size=self.block_size,
            vocab_size=loaded.spec.vocab_size,
        )
        recorder = Recorder(loaded)
        with runner_of(
            exact_settings(scale, decode, mixed),
            recorder.loaded,
            self.backend,
            block_size=self.block_size,
            num_blocks=max(schedule.num_blocks, num_sweep_blocks(scale, self.block_size)),
        ) as runner:
            trace = _follow(schedule, runner, recorder, tokens)
            return trace, sweep_buckets(runner, recorder, scale, self.block_size)


def _follow(
    schedule: Schedule, runner: ModelRunner, recorder: Recorder, tokens: list[list[int]] | None
) -> Trace:
    recorder.logits.clear()
    found: list[list[int]] = []
    while (so := schedule.next_step()) is not None:
        got = runner.execute(so).token_ids.tolist()
        taken = got if tokens is None else tokens[len(found)]
        found.append(got)
        rows = so.rows[so.samples]
        ends = (so.num_computed_tokens + so.num_scheduled_tokens)[so.samples]
        runner.states.write_tokens(rows, ends, taken)
        schedule.sampled(so, taken)
    stats = runner.graphs.stats()
    return Trace(list(recorder.logits), found, Counter(stats.buckets), dict(stats.eager_reasons))


def _compare(
    report: Report, line: str, eager: Trace, graph: Trace, sweep: Sweep, limit: float
) -> None:
    errors = [
        error_of(a.double(), b.double()) for a, b in zip(graph.logits, eager.logits, strict=True)
    ]
    kinds = Counter[str]()
    for bucket, count in graph.buckets.items():
        kinds[bucket.partition("(")[0]] += count
    idle = sorted(sweep.kinds - set(kinds))
    reason = f"error above {limit:g}" if max(errors) > limit else f"no {idle} step was replayed"
    report.check(
        "exact",
        line,
        max(errors) <= limit and not idle,
        reason,
        error=max(errors),
        steps=len(errors),
        **kinds,
        eager=sum(graph.eager_reasons.values()),
        steps_with_other_tokens=sum(
            a != b for a, b in zip(graph.tokens, eager.tokens, strict=True)
        ),
    )


def _judge(report: Report, line: str, sweep: Sweep, limit: float) -> None:
    worst = max(sweep.errors, key=sweep.errors.__getitem__, default="")
    worst_row = max(sweep.row_errors.values(), default=0.0)
    error = sweep.errors.get(worst, 0.0)
    is_near = error <= limit and worst_row <= ROW_FACTOR * limit
    reason = f"error above {limit:g}, or {ROW_FACTOR:g} times that in a row"
    if sweep.missing:
        reason = f"never replayed: {', '.join(sweep.missing)}"
    elif not sweep.errors:
        reason = "there is no bucket"
    report.check(
        "exact",
        line,
        is_near and not sweep.missing and bool(sweep.errors),
        reason,
        error=error,
        row_error=worst_row,
        worst=worst,
        buckets=len(sweep.errors),
        most_keys=sweep.most_keys,
        kv_classes=sorted(sweep.kv_classes),
        splits=sorted(sweep.splits),
    )
