"""A model whose every token depends on every K/V entry before it, through two layers, in integers.

It reads through block tables, as a real one does: a wrong slot, a stale block, a block shared with
another prefix, a token fed twice or not at all give other tokens than `expected` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from runtime.config.sections import SchedulerConfig
from runtime.data.params import SamplingParams
from runtime.data.request import FinishReason, Request
from runtime.data.step import NewRow, RequestOutput, RunnerOutput, SchedulerOutput, StepShape
from runtime.scheduler import Scheduler

VOCAB = 50


class StepFailedError(Exception):
    pass


@dataclass
class Row:
    tokens: list[int]
    blocks: list[int]
    request_id: str


@dataclass
class FakeRunner:
    block_size: int
    rows: dict[int, Row] = field(default_factory=dict)
    first: dict[int, tuple[int, int]] = field(default_factory=dict)
    """slot -> (token, position), what layer 1 keeps"""
    second: dict[int, int] = field(default_factory=dict)
    """slot -> hash of all that layer 1 keeps up to there, what layer 2 keeps"""

    def execute(self, so: SchedulerOutput, errors: dict[int, str] | None = None) -> RunnerOutput:
        self.apply(so)
        spans = self.write_first_layer(so)
        for row, start, end in spans:
            for position in range(start, end):
                seen = [self.first[self.slot(row, p)] for p in range(position + 1)]
                assert [token for token, _ in seen] == row.tokens[: position + 1]
                self.second[self.slot(row, position)] = hash(tuple(seen))
        sampled = []
        for (row, _, end), samples in zip(spans, so.samples.tolist(), strict=True):
            assert samples == (end == len(row.tokens)), "logits are needed where known tokens end"
            if samples:
                sampled.append(hash(tuple(self.second[self.slot(row, p)] for p in range(end))))
                sampled[-1] %= VOCAB
                row.tokens.append(sampled[-1])
        return output_of(so, sampled, errors)

    def apply(self, so: SchedulerOutput) -> None:
        for row_id in so.freed_rows:
            self.rows.pop(row_id, None)
        for new in so.new_rows:
            assert new.row not in self.rows, "a row is given away while it is held"
            self.rows[new.row] = self.row_of(new)
        for row_id, block_ids in so.new_block_ids:
            self.rows[row_id].blocks.extend(block_ids)

    def write_first_layer(self, so: SchedulerOutput) -> list[tuple[Row, int, int]]:
        spans = []
        for row_id, start, count in zip(
            so.rows.tolist(),
            so.num_computed_tokens.tolist(),
            so.num_scheduled_tokens.tolist(),
            strict=True,
        ):
            row = self.rows[row_id]
            assert count >= 1
            assert start + count <= len(row.tokens), "unknown tokens are scheduled"
            for position in range(start, start + count):
                slot = self.slot(row, position)
                self.first[slot] = (row.tokens[position], position)
                self.second.pop(slot, None)
            spans.append((row, start, start + count))
        return spans

    def break_step(self, so: SchedulerOutput, how: str) -> None:
        """A step that raises before the runner looks at it, or after it has written nonsense."""
        if how == "half-way":
            self.apply(so)
            for row, start, end in self.write_first_layer(so):
                for position in range(start, end):
                    self.first[self.slot(row, position)] = (-1, -1)
        raise StepFailedError(how)

    def slot(self, row: Row, position: int) -> int:
        block_id = row.blocks[position // self.block_size]
        assert block_id >= 2, "a reserved block is used"
        return block_id * self.block_size + position % self.block_size

    @staticmethod
    def row_of(new: NewRow) -> Row:
        return Row(list(new.token_ids), list(new.block_ids), new.request_id)


def output_of(
    so: SchedulerOutput, sampled: list[int], errors: dict[int, str] | None = None, **extra
) -> RunnerOutput:
    extra.setdefault("bad_kv", tuple(errors or ()))
    shape = StepShape(so.num_tokens, so.num_tokens, so.num_reqs, so.num_reqs, "eager")
    return RunnerOutput(np.array(sampled, np.int32), shape, errors or {}, **extra)


@lru_cache(maxsize=200_000)
def next_token(tokens: tuple[int, ...]) -> int:
    kept = [(token, position) for position, token in enumerate(tokens)]
    second = tuple(hash(tuple(kept[: p + 1])) for p in range(len(kept)))
    return hash(second) % VOCAB


def expected(
    request: Request, max_model_len: int
) -> tuple[list[int], FinishReason, int | str | None]:
    """Output tokens, finish reason and stop reason of a request that runs alone."""
    tokens, params = list(request.prompt_token_ids), request.params
    output: list[int] = []
    while True:
        token = next_token(tuple(tokens))
        may_stop = len(output) >= params.min_tokens
        tokens.append(token)
        output.append(token)
        if may_stop and not params.ignore_eos and token in request.eos_token_ids:
            return output, FinishReason.STOP, None
        if may_stop and token in params.stop_token_ids:
            return output, FinishReason.STOP, token
        if len(output) == params.max_tokens or len(tokens) == max_model_len:
            return output, FinishReason.LENGTH, None


def make_scheduler(
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    max_model_len: int = 64,
    prefix_caching: bool = True,
    hash_name: str = "xxh3_128",
    runs_ahead: bool = False,
    **config,
) -> Scheduler:
    values = {"max_num_batched_tokens": 64, "max_num_seqs": 8} | config
    return Scheduler(
        SchedulerConfig(**values),
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
        hash_name=hash_name,
        runs_ahead=runs_ahead,
    )


def make_request(request_id: str, prompt: list[int], max_tokens: int = 4, **fields) -> Request:
    names = Request.__dataclass_fields__
    params = {k: v for k, v in fields.items() if k not in names}
    rest = {k: v for k, v in fields.items() if k in names}
    return Request(request_id, prompt, SamplingParams(max_tokens=max_tokens, **params), **rest)


@dataclass
class Bench:
    """A scheduler and its fake model, stepped together and checked after every step."""

    scheduler: Scheduler
    runner: FakeRunner = field(init=False)
    finished: dict[str, RequestOutput] = field(default_factory=dict)
    steps: list[SchedulerOutput] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.scheduler.pool.block_size)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def schedule(self) -> SchedulerOutput:
        so = self.scheduler.schedule()
        assert so.num_tokens <= self.scheduler.config.max_num_batched_tokens
        self.scheduler.check_integrity()
        if so.num_reqs:
            self.steps.append(so)
        return so

    def complete(
        self, so: SchedulerOutput, errors: dict[int, str] | None = None
    ) -> list[RequestOutput]:
        outputs = self.scheduler.update_from_output(so, self.runner.execute(so, errors))
        return self.note(outputs)

    def fail(self, so: SchedulerOutput, how: str = "half-way") -> list[RequestOutput]:
        try:
            self.runner.break_step(so, how)
        except StepFailedError as fault:
            return self.note(self.scheduler.fail_step(so, str(fault)))
        raise AssertionError("break_step did not raise")

    def finish(self, *ids: str, reason: FinishReason = FinishReason.ABORT) -> list[RequestOutput]:
        return self.note(self.scheduler.finish(ids, reason))

    def step(self) -> list[RequestOutput]:
        so = self.schedule()
        return self.complete(so) if so.num_reqs else []

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished():
                return
            had = len(self.steps)
            self.step()
            assert len(self.steps) > had, "work waits and nothing runs"
        raise AssertionError(f"not done after {max_steps} steps")

    def note(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        self.scheduler.check_integrity()
        for output in outputs:
            if output.finish_reason is not None:
                assert output.request.request_id not in self.finished, "ended twice"
                self.finished[output.request.request_id] = output
        return outputs

    def assert_as_alone(self, *requests: Request) -> None:
        """Each request ended with the tokens and the reason that it has when it runs alone."""
        for request in requests:
            tokens, reason, stop_reason = expected(request, self.scheduler._state.max_model_len)
            assert request.output_token_ids == tokens
            assert request.finish_reason is reason
            assert request.stop_reason == stop_reason
            assert self.finished[request.request_id].finish_reason is reason


def chunks_of(bench: Bench, row: int = 0) -> list[int]:
    """Tokens that one row got in each step that had it."""
    return [
        int(count)
        for so in bench.steps
        for r, count in zip(so.rows, so.num_scheduled_tokens, strict=True)
        if r == row
    ]
