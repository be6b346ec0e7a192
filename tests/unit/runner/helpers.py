"""Small makers for the runner's tests: steps by hand, and random but legal schedules."""

from __future__ import annotations

import numpy as np
import torch

from runtime.data.params import SamplingParams
from runtime.data.step import NewRow, SchedulerOutput
from runtime.runner.buffers import InputBuffers

CPU = torch.device("cpu")


def ints(*values):
    return np.array(values, np.int32)


def new_row(row, token_ids, *, computed=0, block_ids, prompt=None, **params):
    return NewRow(
        row=row,
        request_id=f"r{row}",
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids) if prompt is None else prompt,
        num_computed_tokens=computed,
        block_ids=list(block_ids),
        params=SamplingParams(temperature=0.0, **params),
        eos_token_ids=(),
    )


def step(scheduled, *, new=(), freed=(), blocks=(), known=None, step_id=0):
    """A SchedulerOutput from (row, computed, scheduled, samples) tuples."""
    columns = list(zip(*scheduled, strict=True)) if scheduled else [(), (), (), ()]
    return SchedulerOutput(
        step_id=step_id,
        rows=ints(*columns[0]),
        num_computed_tokens=ints(*columns[1]),
        num_scheduled_tokens=ints(*columns[2]),
        samples=np.array(columns[3], bool),
        freed_rows=tuple(freed),
        new_rows=tuple(new),
        new_block_ids=tuple((row, list(ids)) for row, ids in blocks),
    )


def make_buffers(states, max_tokens=256, max_reqs=None):
    rows, width = states.block_table.shape
    blocks = max(width, -(-max_tokens // states.block_size))
    return InputBuffers(max_tokens, max_reqs or rows + 1, blocks, CPU)


class RandomSchedule:
    """Random legal steps over a pool, as a scheduler could give them: chunks, decodes, finishing,
    preemption with re-entry, rows reused. Knows every token, so that tests can check against it."""

    def __init__(
        self, seed, *, max_num_seqs=6, max_model_len=40, block_size=4, vocab=50, budget=64
    ):
        self.rng = np.random.default_rng(seed)
        self.max_model_len, self.block_size, self.vocab = max_model_len, block_size, vocab
        self.budget = budget
        blocks = max_num_seqs * -(-max_model_len // block_size)
        self.free_blocks = [int(b) for b in self.rng.permutation(blocks) + 2]
        self.free_rows = list(range(max_num_seqs))
        self.running = {}  # row -> dict(tokens, prompt, computed, blocks)
        self.waiting = []
        self.freed = []
        self.step_id = 0

    def next_step(self):
        rng = self.rng
        for row in list(self.running):
            if rng.random() < 0.1:
                self._leave(row, preempt=rng.random() < 0.5)
        known = set(self.running)
        while self.free_rows and (not self.running or rng.random() < 0.4):
            self._enter()
        scheduled, blocks, budget = [], [], self.budget
        order = [int(r) for r in rng.permutation(sorted(self.running))]
        for row in order:
            request = self.running[row]
            missing = len(request["tokens"]) - request["computed"]
            later = len(order) - len(scheduled) - 1
            count = int(rng.integers(1, min(missing, budget - later) + 1))
            budget -= count
            end = request["computed"] + count
            need = -(-end // self.block_size) - len(request["blocks"])
            taken = [self.free_blocks.pop(0) for _ in range(max(0, need))]
            request["blocks"] += taken
            if taken and row in known:
                blocks.append((row, taken))
            scheduled.append((row, request["computed"], count, count == missing))
        new = [
            new_row(
                row,
                self.running[row]["tokens"],
                computed=self.running[row]["computed"],
                block_ids=self.running[row]["blocks"],
                prompt=self.running[row]["prompt"],
            )
            for row in order
            if row not in known
        ]
        so = step(scheduled, new=new, freed=self.freed, blocks=blocks, step_id=self.step_id)
        self.freed, self.step_id = [], self.step_id + 1
        return so

    def sampled(self, so, token_ids):
        """Take the tokens that the step sampled; rows that reach the limit leave."""
        for row, count in zip(so.rows.tolist(), so.num_scheduled_tokens.tolist(), strict=True):
            self.running[row]["computed"] += count
        for row, token in zip(so.rows[so.samples].tolist(), token_ids, strict=True):
            self.running[row]["tokens"].append(int(token))
            if len(self.running[row]["tokens"]) >= self.max_model_len:
                self._leave(row, preempt=False)

    def _enter(self):
        row = self.free_rows.pop(int(self.rng.integers(len(self.free_rows))))
        if self.waiting and self.rng.random() < 0.7:
            tokens, prompt = self.waiting.pop()
        else:
            prompt = int(self.rng.integers(1, self.max_model_len - 1))
            tokens = [int(t) for t in self.rng.integers(1, self.vocab, prompt)]
        self.running[row] = {"tokens": tokens, "prompt": prompt, "computed": 0, "blocks": []}

    def _leave(self, row, *, preempt):
        request = self.running.pop(row)
        self.free_blocks += reversed(request["blocks"])
        self.free_rows.append(row)
        self.freed.append(row)
        if preempt:
            self.waiting.append((request["tokens"], request["prompt"]))
