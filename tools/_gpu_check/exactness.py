"""Every graph mode on a tiny model: captured and replayed steps give the logits of eager ones."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from attention_backends import AttentionBackend
from graphs import Kind
from runtime.errors import StepgraphError
from runtime.models import LoadedModel
from runtime.models._interface import Attend
from tools._gpu_check.attention_numerics import able_backends
from tools._gpu_check.batches import Schedule
from tools._gpu_check.op_numerics import error_of
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale, spec_of
from tools._gpu_check.subject import load, refusal_of, runner_of, settings

LIMITS = {"float32": 1e-4, "bfloat16": 4e-2}
"""Of the logits' size: padded products may add in another order."""
LENGTHS = [(23, 9), (1, 12), (70, 5), (16, 16), (5, 3), (33, 7)]
"""(prompt, output) tokens: decodes beside chunks, rows that are left and taken again."""
BUDGET, ROWS, MAX_MODEL_LEN = 32, 4, 128


class Recorder:
    """A model that keeps the logits that it gave."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self.logits: list[Tensor] = []

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self._model.forward(input_ids, positions, attend)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.logits.append(self._model.compute_logits(hidden))
        return self.logits[-1]


class Trace(NamedTuple):
    logits: list[Tensor]
    tokens: list[list[int]]
    kinds: list[str]


def check_modes(scale: Scale, report: Report, deadline: Deadline) -> None:
    """A line for each backend, type and pair of modes."""
    dtypes = ["float32", "bfloat16"] if scale.device.type == "cuda" else ["float32"]
    for dtype in dtypes:
        loaded = load(spec_of({**scale.exact_config, "torch_dtype": dtype}), scale.device)
        shapes = loaded.attention_shapes
        for name, backend, block_size in able_backends(shapes, scale, "exact", report):
            eager = None
            for decode, mixed in _pairs(scale):
                line = f"{name} {dtype} decode={decode} mixed={mixed}"
                if deadline.is_over:
                    report.skip("exact", line, "time limit")
                    continue
                reason = refusal_of(decode, mixed, loaded, backend, block_size)
                if reason:
                    report.skip("exact", line, reason)
                    continue
                try:
                    if eager is None:
                        eager = run("eager", "eager", loaded, backend, block_size, None)
                    graph = run(decode, mixed, loaded, backend, block_size, eager.tokens)
                except StepgraphError as error:
                    report.check("exact", line, False, str(error))
                    continue
                _compare(report, line, eager, graph, LIMITS[dtype])


def _pairs(scale: Scale) -> list[tuple[str, str]]:
    pairs = [("padded_eager", "padded_eager")]
    for mixed in scale.mixed_modes:
        pairs.append((mixed if mixed == "ragged" else scale.decode_mode, mixed))
    return pairs


def run(
    decode: str,
    mixed: str,
    loaded: LoadedModel,
    backend: type[AttentionBackend],
    block_size: int,
    tokens: list[list[int]] | None,
) -> Trace:
    """The schedule's steps; given `tokens`, those are taken for what was sampled, so that a tie
    does not send two runs different ways."""
    schedule = Schedule(
        LENGTHS,
        budget=BUDGET,
        max_rows=ROWS,
        block_size=block_size,
        vocab_size=loaded.spec.vocab_size,
    )
    recorder = Recorder(loaded)
    config = settings(
        decode, mixed, max_num_seqs=ROWS, max_tokens=BUDGET, max_model_len=MAX_MODEL_LEN
    )
    trace = Trace([], [], [])
    with runner_of(
        config,
        LoadedModel(recorder, loaded.spec, loaded.attention_shapes, loaded.device),
        backend,
        block_size=block_size,
        num_blocks=schedule.num_blocks,
    ) as runner:
        recorder.logits.clear()
        while (so := schedule.next_step()) is not None:
            ro = runner.execute(so)
            got = ro.token_ids.tolist()
            taken = got if tokens is None else tokens[len(trace.tokens)]
            trace.tokens.append(got)
            trace.kinds.append(ro.shape.kind)
            rows = so.rows[so.samples]
            ends = (so.num_computed_tokens + so.num_scheduled_tokens)[so.samples]
            runner.states.write_tokens(rows, ends, taken)
            schedule.sampled(so, taken)
        trace.logits.extend(recorder.logits)
    return trace


def _compare(report: Report, line: str, eager: Trace, graph: Trace, limit: float) -> None:
    errors = [
        error_of(a.double(), b.double()) for a, b in zip(graph.logits, eager.logits, strict=True)
    ]
    replayed = sum(kind != Kind.EAGER.value for kind in graph.kinds)
    differing = sum(a != b for a, b in zip(graph.tokens, eager.tokens, strict=True))
    passed = max(errors) <= limit and replayed > 0
    report.check(
        "exact",
        line,
        passed,
        f"error above {limit:g}, or no step was padded or replayed",
        error=max(errors),
        steps=len(errors),
        replayed=replayed,
        steps_with_other_tokens=differing,
    )
