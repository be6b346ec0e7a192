"""ModelRunner: one step on the device, from a SchedulerOutput to its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attention_backends import (
    NUM_RESERVED_BLOCKS,
    AttentionBackend,
    Bucket,
    GraphSupport,
    Plan,
    examine_layers,
)
from graphs import Call, GraphError, GraphKey, Kind
from runtime.data.params import SamplingParams
from runtime.data.step import Logprobs, NewRow, RunnerOutput, SchedulerOutput, StepShape
from runtime.errors import BackendError
from runtime.observe.stats import GraphStats
from runtime.ops.transfer import upload
from runtime.runner import canary
from runtime.runner.buffers import InputBuffers
from runtime.runner.forward import AttentionOutputs, Forward
from runtime.runner.graph_setup import graph_stats, log_report, make_graphs
from runtime.runner.input_batch import InputBatch
from runtime.runner.launched import Launched, Samples
from runtime.runner.out_of_memory import explain_out_of_memory
from runtime.runner.states import RequestStates
from runtime.sampling import Sampler

if TYPE_CHECKING:
    from runtime.config import RuntimeConfig
    from runtime.models import LoadedModel

PROMPT_LOGITS_ROWS = 256
"""Prompt positions whose logits are made at once: a whole prompt's may not fit in memory."""


class ModelRunner:
    """Owns what lives on the device: the KV pool, the buffers, the captured graphs.

    Args:
        loaded: the model with its weights.
        backend: the attention backend's class.
        max_model_len: most tokens of a request.
        block_size: tokens of a KV block.
        num_blocks: usable KV blocks; the reserved ones come on top.
        make_sampler: `Sampler`, or a partial of it with what only some requests need.
        capture: whether graphs are captured here; False where memory is measured first, with the
            smallest pool.

    Raises:
        BackendError: a graph mode that cannot serve the model here, or whose capture failed.
        ConfigError: out of memory, with the part and what makes it smaller.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        loaded: LoadedModel,
        backend: type[AttentionBackend],
        *,
        device: torch.device,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        make_sampler: Callable[..., Sampler] = Sampler,
        capture: bool = True,
    ) -> None:
        scheduler, shapes = config.scheduler, loaded.attention_shapes
        self._model = loaded.model
        self._support = examine_layers(backend, shapes, block_size, device)
        self.graphs = make_graphs(config, self._support, device, max_model_len, self._statics)
        dispatcher = self.graphs.dispatcher
        max_tokens = dispatcher.max_tokens_padded

        # a tail request of padding tokens may be longer than any real one
        max_blocks = -(-max(max_model_len, max_tokens) // block_size)
        with explain_out_of_memory("buffers"):
            self.states = RequestStates(scheduler.max_num_seqs, max_model_len, block_size)
            self._buffers = InputBuffers(max_tokens, dispatcher.max_reqs_padded, max_blocks, device)
            self.sampler = make_sampler(loaded.spec.vocab_size, self.states.token_ids, device)
            self._outputs = AttentionOutputs(shapes, max_tokens, device)
            self._poison = (
                canary.no_poison(max_tokens, loaded.dtype, device)
                if config.engine.padding_canary
                else None
            )
        with explain_out_of_memory("workspaces"):
            self.backend = backend(shapes, block_size, device)
        with explain_out_of_memory("KV pool" if capture else "smallest KV pool"):
            self.kv = self.backend.allocate_kv(num_blocks + NUM_RESERVED_BLOCKS)
        self._forwards: dict[GraphKey, Forward] = {}
        """of each graph, kept for its replays"""
        self._block_bytes = block_size * loaded.spec.kv_bytes_per_token
        self._sampled: Tensor | None = None
        """[S] int32 on the device, of the step that was launched last"""
        self._max_model_len = max_model_len
        if capture:
            self._capture_graphs()

    def execute(self, so: SchedulerOutput) -> RunnerOutput:
        """Run one step, to its tokens."""
        return self.collect(self.launch(so))

    @torch.inference_mode()
    def launch(self, so: SchedulerOutput) -> Launched:
        """Queue one step on the device; the host waits for none of it, but for log-probabilities
        of a prompt.

        Steps run in the order of their launch. A step without requests only follows the freed
        rows.
        """
        self._apply(so)
        if not so.num_reqs:
            self._sampled = None
            return Launched(StepShape(0, 0, 0, 0, Kind.EAGER.value))
        key = self.graphs.dispatch(
            so.num_tokens,
            so.num_reqs,
            int(so.num_scheduled_tokens.max()),
            int((so.num_computed_tokens + so.num_scheduled_tokens).max()),
        )
        batch = InputBatch.build(so, self.states, self._buffers, key, self._sampled)
        launched = Launched(_shape_of(batch))
        self.sampler.prepare(batch.sample_rows, batch.sample_positions)
        if self._poison is not None and batch.is_padded:
            hidden, batch = self._run_with_canary(so, batch, self._poison)
        else:
            hidden = self._run(batch)
        launched.prompt_logprobs = self._prompt_logprobs(hidden, batch)
        self._sampled = None
        if len(batch.sample_rows):
            launched.samples = self._sample(hidden, batch)
            self._sampled = launched.samples.pending.token_ids
        return launched

    def collect(self, launched: Launched) -> RunnerOutput:
        """Wait for a step's tokens, in the order of the launches, and note them."""
        samples = launched.samples
        if samples is None:
            return RunnerOutput(
                np.zeros(0, np.int32), launched.shape, prompt_logprobs=launched.prompt_logprobs
            )
        found = samples.pending.read()
        self.states.write_tokens(samples.rows, samples.positions, found.token_ids, samples.tenancy)
        return RunnerOutput(
            found.token_ids,
            launched.shape,
            found.errors,
            found.logprobs,
            launched.prompt_logprobs,
            found.bad_logits,
            found.late,
        )

    @torch.inference_mode()
    def run_largest(self) -> None:
        """One eager step of the most tokens, with the logits and draws of the most requests and
        log-probabilities of a prompt: what takes the most memory."""
        num_tokens = self.graphs.dispatcher.max_tokens_padded
        key = GraphKey(Kind.EAGER, num_tokens, 1)
        batch = InputBatch.build(_NO_REQUESTS, self.states, self._buffers, key)
        hidden = self._run(batch)
        rows = np.arange(len(self.states.num_blocks), dtype=np.int32)
        for row in rows.tolist():
            params = SamplingParams(top_p=0.9 if row % 2 else 1.0, prompt_logprobs=1, seed=row)
            self.sampler.add(NewRow(row, "", [0], 1, 0, [], params, ()))
        self.sampler.sample(self._model.compute_logits(hidden[: len(rows)]), rows, rows * 0 + 1)
        logits = self._model.compute_logits(hidden[:PROMPT_LOGITS_ROWS])
        self.sampler.prompt_logprobs(logits, 0, np.zeros(len(logits), np.int32))
        for row in rows.tolist():
            self.sampler.drop(row)

    def reserve_for_graphs(self) -> int:
        """Have the backend allocate what its graphs need; returns bytes."""
        keys = self.graphs.keys_to_capture()
        baked = [_bucket_of(key) for key in keys if self._has_baked_plan(key)]
        with explain_out_of_memory("workspaces"):
            return self.backend.reserve(baked, self._max_model_len) if keys else 0

    def estimate_graphs(self) -> int:
        """Bytes that the graphs will take, from trial captures after `reserve_for_graphs`.

        Raises:
            BackendError: a capture failed.
            ConfigError: out of memory.
        """
        try:
            with explain_out_of_memory("graphs"), torch.inference_mode():
                return self.graphs.estimate_bytes(self._dummy_forward)
        except GraphError as error:
            raise BackendError(str(error)) from error
        finally:
            self._forwards.clear()

    def graph_stats(self) -> GraphStats:
        """Which graphs ran, and what their capture cost; a snapshot."""
        return graph_stats(self.graphs, self._block_bytes)

    def close(self) -> None:
        """Drop the captured graphs, end the sampler's thread."""
        self.graphs.close()
        self.sampler.close()

    def _apply(self, so: SchedulerOutput) -> None:
        self.states.apply(so)
        for row in so.freed_rows:
            self.sampler.drop(row)
        for new in so.new_rows:
            self.sampler.add(new)
        if so.blocks_to_clear:
            [block_ids] = upload(self.kv[0].k.device, np.array(so.blocks_to_clear, np.int64))
            for kv in self.kv:
                kv.k.index_fill_(0, block_ids, 0)
                kv.v.index_fill_(0, block_ids, 0)

    def _run(self, batch: InputBatch) -> Tensor:
        """[T, hidden], valid until the next run."""
        forward = self._forwards.get(batch.key.graph)
        if forward is None and self.graphs.captures(batch.key):  # at its use
            forward = self._keep_forward(batch)
        if forward is None:
            forward = self._forward(batch, self.backend.plan(batch.attention))
        elif self._has_baked_plan(batch.key):
            self.backend.refresh(forward.plan, batch.attention)
        else:
            forward.plan = self.backend.plan(batch.attention)
        return self.graphs.run(batch.key, forward)

    def _forward(self, batch: InputBatch, plan: Plan) -> Forward:
        return Forward(self._model, self.backend, self.kv, self._outputs, batch, plan, self._poison)

    def _sample(self, hidden: Tensor, batch: InputBatch) -> Samples:
        rows, positions = batch.sample_rows, batch.sample_positions
        logits = self._model.compute_logits(hidden.index_select(0, batch.logits_indices))
        pending = self.sampler.launch(logits, rows, positions)
        self.states.note_samples(rows)
        return Samples(rows, positions, self.states.tenancy[rows], pending)

    def _prompt_logprobs(self, hidden: Tensor, batch: InputBatch) -> dict[int, list[Logprobs]]:
        found: dict[int, list[Logprobs]] = {}
        for span in batch.prompt_spans:
            for offset in range(0, span.count, PROMPT_LOGITS_ROWS):
                count = min(PROMPT_LOGITS_ROWS, span.count - offset)
                start, target = span.start + offset, span.first_target + offset
                logits = self._model.compute_logits(hidden[start : start + count])
                targets = self.states.token_ids[span.row, target : target + count]
                found.setdefault(span.row, []).extend(
                    self.sampler.prompt_logprobs(logits, span.row, targets)
                )
        return found

    def _has_baked_plan(self, key: GraphKey) -> bool:
        """Whether attention is inside the key's captured graph."""
        needed = {Kind.DECODE: GraphSupport.ONE_TOKEN, Kind.RAGGED: GraphSupport.RAGGED}
        return key.kind in needed and self._support.graph >= needed[key.kind]

    def _capture_graphs(self) -> None:
        if not self.graphs.keys_to_capture():
            return
        self.reserve_for_graphs()
        try:
            with explain_out_of_memory("graphs", "cache.memory"), torch.inference_mode():
                self.graphs.capture(self._dummy_forward)
        except GraphError as error:
            raise BackendError(str(error)) from error
        log_report(self.graphs.report, self._block_bytes)

    def _dummy_forward(self, key: GraphKey) -> Call:
        """The forward over a legal batch of padding alone."""
        return self._keep_forward(InputBatch.build(_NO_REQUESTS, self.states, self._buffers, key))

    def _keep_forward(self, batch: InputBatch) -> Forward:
        """The forward over the buffers of the batch's key, kept for the graph that is captured of
        it."""
        if self._has_baked_plan(batch.key):
            plan = self.backend.open_bucket(_bucket_of(batch.key), batch.attention)
        else:
            plan = self.backend.plan(batch.attention)
        forward = self._forwards[batch.key.graph] = self._forward(batch, plan)
        return forward

    def _statics(self) -> dict[str, Tensor]:
        """What graphs read and write by address, beside the weights."""
        named = {f"the step's {name}": tensor for name, tensor in self._buffers.device_tensors()}
        for layer, kv in enumerate(self.kv):
            named |= {f"K of layer {layer}": kv.k, f"V of layer {layer}": kv.v}
        for shape, buffer in self._outputs.buffers.items():
            named[f"attention's output of {shape}"] = buffer
        if self._poison is not None:
            named["the canary's poison"] = self._poison
        return named

    def _run_with_canary(
        self, so: SchedulerOutput, batch: InputBatch, poison: Tensor
    ) -> tuple[Tensor, InputBatch]:
        """Run padded and exact, compare, and go on with what the padded run gave."""
        num_tokens = batch.num_tokens
        slots = batch.attention.slot_mapping[:num_tokens].clone()
        for buffer in self._outputs.buffers.values():
            buffer[num_tokens:] = float("nan")
        canary.poison_trash(self.kv)
        poison[num_tokens:] = float("nan")
        padded = canary.Trace(self._run(batch), self.kv, slots)
        poison.zero_()
        canary.clear_trash(self.kv)
        exact_key = GraphKey(Kind.EAGER, num_tokens, batch.num_reqs)
        exact_batch = InputBatch.build(so, self.states, self._buffers, exact_key, self._sampled)
        exact = canary.Trace(self._run(exact_batch), self.kv, slots)
        canary.compare(padded, exact, self.kv, f"{batch.key} with {num_tokens} real tokens")
        return padded.hidden, exact_batch


_NO_ROWS = np.zeros(0, np.int32)
_NO_REQUESTS = SchedulerOutput(
    step_id=-1,
    rows=_NO_ROWS,
    num_scheduled_tokens=_NO_ROWS,
    num_computed_tokens=_NO_ROWS,
    samples=np.zeros(0, bool),
    freed_rows=(),
    new_rows=(),
    new_block_ids=(),
)


def _bucket_of(key: GraphKey) -> Bucket:
    return Bucket(key.kind.value, key.num_tokens, key.num_reqs, key.kv_class)


def _shape_of(batch: InputBatch) -> StepShape:
    return StepShape(
        num_tokens=batch.num_tokens,
        num_tokens_padded=batch.num_tokens_padded,
        num_reqs=batch.num_reqs,
        num_reqs_padded=batch.num_reqs_padded,
        kind=batch.key.kind.value,
        eager_reason=batch.key.eager_reason,
    )
