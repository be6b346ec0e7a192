"""The lines of a schedule trace: JSON, one object a line.

A file is a Header, then a StepLine for each step in the order in which they ended, and an End where
the trace was closed or goes on in another file. Fields that have their default are left out. Times
are seconds since `Header.clock_s`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from runtime.data.params import SamplingParams
from runtime.data.step import NewRow, SchedulerOutput, StepShape
from runtime.observe.steps import Preemption, StepRecord, StepTimes

FORMAT = "stepgraph-trace"
VERSION = 1
"""Raised by every change that a reader of the former version would misread."""


class Line(msgspec.Struct, tag_field="kind", omit_defaults=True):
    """Any line; `kind` says which."""


class Header(Line, tag="header"):
    """The first line of a file."""

    format: str
    version: int
    trace_id: str
    """Equal in all files of one trace."""
    part: int
    """Of the file in its trace, from 0."""
    clock_s: float
    """time.perf_counter where the trace began."""
    date: str
    about: dict[str, Any] = {}
    """What ran: versions, model, sizes, modes, the configuration."""


class TracedRow(msgspec.Struct, omit_defaults=True):
    """A NewRow: a request that enters a row, whole."""

    row: int
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    """Those that the prefix cache had."""
    block_ids: list[int]
    params: dict[str, Any] = {}
    """Without the defaults, and without logits processors, which are functions."""
    eos_token_ids: tuple[int, ...] = ()
    num_logits_processors: int = 0


class Ended(msgspec.Struct, omit_defaults=True):
    """A request that this step ended."""

    request_id: str
    reason: str
    arrival_s: float
    first_scheduled_s: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None


class StepLine(Line, tag="step"):
    """One step; B requests, S of them sample. See SchedulerOutput and StepRecord."""

    step: int
    started_s: float
    request_ids: tuple[str, ...]
    """[B]"""
    rows: list[int]
    scheduled: list[int]
    """[B] tokens"""
    computed: list[int]
    """[B] tokens, before the step"""
    samples: list[bool]
    """[B]"""
    running: int
    waiting: int
    blocks_used: int
    times: StepTimes
    shape: StepShape | None = None
    """None where the step failed"""
    tokens: list[int] = []
    """[S]"""
    digest: str = ""
    """Of all tokens of the trace up to here: two traces with the same one sampled the same."""
    new: list[TracedRow] = []
    freed: tuple[int, ...] = ()
    """rows"""
    blocks: tuple[tuple[int, list[int]], ...] = ()
    """(row, block ids that it gets)"""
    clear: tuple[int, ...] = ()
    feeds: list[bool] | None = None
    preempted: tuple[Preemption, ...] = ()
    held_back: str = ""
    row_errors: dict[int, str] = {}
    """Index into S -> why that request ended"""
    late: tuple[int, ...] = ()
    ended: list[Ended] = []
    error: str = ""


class End(Line, tag="end"):
    """The last line of a file."""

    num_steps: int
    """Of the trace up to here."""
    goes_on: bool = False
    """In the next file."""


def line_of(record: StepRecord, clock_s: float, digest: str) -> StepLine:
    """What is written of a step.

    Args:
        clock_s: where the trace's times begin.
    """
    so, ro = record.so, record.ro
    return StepLine(
        step=so.step_id,
        started_s=round(record.started_s - clock_s, 7),
        request_ids=record.request_ids,
        rows=so.rows.tolist(),
        scheduled=so.num_scheduled_tokens.tolist(),
        computed=so.num_computed_tokens.tolist(),
        samples=so.samples.tolist(),
        running=record.num_running,
        waiting=record.num_waiting,
        blocks_used=record.num_blocks_used,
        times=StepTimes(*(round(seconds, 7) for seconds in record.times)),
        shape=None if ro is None else ro.shape,
        tokens=[] if ro is None else ro.token_ids.tolist(),
        digest=digest,
        new=[_traced(new) for new in so.new_rows],
        freed=so.freed_rows,
        blocks=so.new_block_ids,
        clear=so.blocks_to_clear,
        feeds=None if so.feeds is None else so.feeds.tolist(),
        preempted=record.notes.preempted,
        held_back=record.notes.held_back,
        row_errors={} if ro is None else ro.errors,
        late=() if ro is None else ro.late,
        ended=_ended(record, clock_s),
        error=record.error,
    )


def step_of(line: StepLine) -> SchedulerOutput:
    """The schedule that a line was made of.

    Raises:
        RequestError: parameters out of their range.
    """
    return SchedulerOutput(
        step_id=line.step,
        rows=np.array(line.rows, np.int32),
        num_scheduled_tokens=np.array(line.scheduled, np.int32),
        num_computed_tokens=np.array(line.computed, np.int32),
        samples=np.array(line.samples, bool),
        freed_rows=line.freed,
        new_rows=tuple(_new_row(new) for new in line.new),
        new_block_ids=line.blocks,
        blocks_to_clear=line.clear,
        feeds=None if line.feeds is None else np.array(line.feeds, bool),
    )


_DEFAULTS = {f.name: getattr(SamplingParams(), f.name) for f in fields(SamplingParams)}


def _traced(new: NewRow) -> TracedRow:
    values = {name: getattr(new.params, name) for name in _DEFAULTS}
    processors = values.pop("logits_processors")
    return TracedRow(
        row=new.row,
        request_id=new.request_id,
        token_ids=new.token_ids,
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        block_ids=new.block_ids,
        params={name: value for name, value in values.items() if value != _DEFAULTS[name]},
        eos_token_ids=new.eos_token_ids,
        num_logits_processors=len(processors),
    )


def _new_row(new: TracedRow) -> NewRow:
    return NewRow(
        row=new.row,
        request_id=new.request_id,
        token_ids=new.token_ids,
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        block_ids=new.block_ids,
        params=SamplingParams.from_dict(new.params),
        eos_token_ids=new.eos_token_ids,
    )


def _ended(record: StepRecord, clock_s: float) -> list[Ended]:
    found = []
    for output in record.outputs:
        if output.finish_reason is not None:
            request = output.request
            first_s = request.first_scheduled_s
            found.append(
                Ended(
                    request_id=request.request_id,
                    reason=output.finish_reason.value,
                    arrival_s=round(request.arrival_s - clock_s, 7),
                    first_scheduled_s=None if first_s is None else round(first_s - clock_s, 7),
                    num_cached_tokens=request.num_cached_tokens,
                    num_preemptions=request.num_preemptions,
                    error=request.error,
                )
            )
    return found
