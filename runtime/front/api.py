"""Runtime: text in, text out.

One engine, its tokenizer, and the requests that users gave it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from runtime.config import RunConfig, RuntimeConfig, load_run_config
from runtime.data.params import SamplingParams
from runtime.data.prompts import Chat, Prompt, as_prompts, as_token_ids, check_fields, kind_of
from runtime.data.request import FinishReason, Request
from runtime.data.results import Delta, Result
from runtime.data.step import RequestOutput
from runtime.engine import Engine
from runtime.errors import EngineError, RequestError
from runtime.front.build import Parts, build_engine
from runtime.front.delta_stream import DeltaStream
from runtime.front.live_request import LiveRequest, LiveSample
from runtime.models import ModelSpec
from runtime.observe.stats import RuntimeStats
from runtime.observe.steps import StepObserver
from runtime.sampling import check_params, with_seed
from runtime.text import TextStream, Tokenizer

log = logging.getLogger(__name__)

ParamsLike = SamplingParams | Mapping[str, Any] | None
"""None: the model's defaults; a mapping: changes to them; SamplingParams: exactly these."""


class Runtime:
    """An inference runtime in this process.

    Not thread-safe: AsyncRuntime is the front for many clients.

    Args:
        config: the settled configuration; see RuntimeConfig.
        sampling: SamplingParams fields that requests take where they give none; the `sampling` of
            a run file, if `config` is one.
        observer: is told of every step, and closed with the runtime.

    Raises:
        ConfigError: limits that contradict each other or the machine.
        ModelError: a model or tokenizer that cannot be loaded.
        BackendError: an attention backend or graph mode that cannot serve.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        sampling: Mapping[str, Any] | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self.config = config
        of_run = config.sampling if isinstance(config, RunConfig) else {}
        self._sampling = dict(of_run if sampling is None else sampling)
        SamplingParams.from_dict(self._sampling)
        self._parts: Parts | None = build_engine(config, observer)
        self._live: dict[str, LiveRequest] = {}
        self._samples: dict[str, tuple[LiveRequest, int]] = {}
        self._inboxes: dict[str, deque[Delta]] = {}
        self._inbox: deque[Delta] = deque()
        self._numbers = itertools.count()
        self._num_finished = self._prompt_tokens = self._output_tokens = self._cached_tokens = 0

    @property
    def parts(self) -> Parts:
        """What the runtime is built of.

        Raises:
            EngineError: it was closed.
        """
        if self._parts is None:
            raise EngineError("this runtime was closed")
        return self._parts

    @property
    def engine(self) -> Engine:
        return self.parts.engine

    @property
    def spec(self) -> ModelSpec:
        return self.parts.spec

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.parts.tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and output."""
        return self.parts.max_model_len

    @classmethod
    def from_yaml(cls, path: str, overrides: Mapping[str, Any] | None = None) -> Runtime:
        """A runtime from a YAML run file; `overrides` maps dotted keys to values, such as
        `{"scheduler.max_num_seqs": 8}`."""
        return cls(load_run_config(path, overrides=overrides)[0])

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every request and free the model and the KV pool; closing twice is harmless."""
        if self._parts is None:
            return
        for request_id in list(self._live):
            self.abort(request_id)
        self._inbox.clear()
        self._parts.close()
        self._parts = None

    # -- whole jobs ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: ParamsLike | Sequence[ParamsLike] = None,
        **request: Any,
    ) -> list[Result]:
        """Run prompts to their end; results in the order of the prompts.

        Args:
            prompts: one prompt or many: texts, chats, or lists of token ids.
            params: for all, or one for each prompt.
            **request: `priority`, `cache_salt`, `tools`, as for `add_request`.

        Raises:
            RequestError: a prompt or field that cannot be served; then nothing was run. A request
            that fails while it
                runs raises nothing: its result has finish_reason "error" and `error`.
        """
        ids, deltas = self._add_all(prompts, params, request)
        results = {d.request_id: d.finished for d in deltas if d.finished is not None}
        return [results[request_id] for request_id in ids]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: ParamsLike | Sequence[ParamsLike] = None,
        **request: Any,
    ) -> DeltaStream:
        """Run prompts and yield what each step adds; leaving the loop aborts what is unfinished.

        Delta.request_id tells prompts apart: they are numbered in the order of the prompts.
        """
        return self._add_all(prompts, params, request)[1]

    # -- step by step -------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt | None = None,
        *,
        chat: Chat | None = None,
        token_ids: Sequence[int] | None = None,
        params: ParamsLike = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arrival_s: float | None = None,
    ) -> str:
        """Queue one request and return its id.

        Args:
            arrival_s: when it came, on time.perf_counter's clock; None is now.

        Raises:
            RequestError: naming the field; the engine and every other request are unharmed.
        """
        parts = self.parts
        check_fields(request_id, priority, cache_salt)
        text, ids = self._encode(prompt, chat, token_ids, tools)
        settled = self.settle_params(params)
        request_id = self._free_id() if request_id is None else request_id
        if request_id in self._live:
            raise RequestError("request_id", f"{request_id!r} is already in use")
        group = f"{request_id}/{next(self._numbers)}" if settled.n > 1 else None
        eos = parts.spec.eos_token_ids if settled.heeds_eos else ()
        samples = []
        for index, child in enumerate(with_seed(settled)):
            name = request_id if group is None else f"{request_id}#{index}"
            if index:  # the prompt's log-probabilities come once
                child = child.updated(prompt_logprobs=None)
            sample = Request(name, ids, child, eos, priority, cache_salt, group)
            sample.arrival_s = sample.arrival_s if arrival_s is None else arrival_s
            parts.engine.check(sample)
            stream = TextStream(parts.tokenizer, ids, child) if parts.tokenizer else None
            samples.append(LiveSample(sample, stream))
        self._live[request_id] = live = LiveRequest(request_id, text, ids, settled, samples)
        for index, s in enumerate(samples):
            self._samples[s.request.request_id] = (live, index)
            parts.engine.add(s.request)
        self._prompt_tokens += len(ids)
        return request_id

    def step(self) -> list[Delta]:
        """Run one step of the engine; the deltas of every request that `add_request` queued."""
        self._advance()
        deltas = list(self._inbox)
        self._inbox.clear()
        return deltas

    def has_unfinished(self) -> bool:
        """Whether a request still runs or a delta still waits to be fetched by `step`."""
        return bool(self._inbox) or (self._parts is not None and self.engine.has_unfinished())

    def abort(self, request_id: str) -> None:
        """End a request now, with finish_reason "abort"; its last delta comes with the next `step`.

        Unknown and finished ids are ignored.
        """
        live = self._live.get(request_id)
        if live is not None:
            names = [s.request.request_id for s in live.samples if s.finish_reason is None]
            self._deliver(self.engine.finish(names, FinishReason.ABORT))

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing changes, while requests hold blocks."""
        return self.engine.scheduler.reset_prefix_cache()

    def settle_params(self, params: ParamsLike) -> SamplingParams:
        """The SamplingParams of a request: where it gives none, the runtime's `sampling`, then the
        model's generation_config.

        Raises:
            RequestError: a field out of its range, for this model's vocabulary too.
        """
        if not isinstance(params, SamplingParams):
            given = self._given(params)
            params = SamplingParams.from_dict({**self.spec.generation_defaults, **given})
        check_params(
            params,
            self.engine.vocab_size,
            self.tokenizer,
            eos_token_ids=self.spec.eos_token_ids if params.heeds_eos else (),
            grammars=self.parts.grammars,
        )
        return params

    def stats(self) -> RuntimeStats:
        """Counters since the runtime was made."""
        counters, scheduler = self.engine.counters, self.engine.scheduler
        s = scheduler.stats
        return RuntimeStats(
            num_requests=self._num_finished + len(self._live),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_finished=self._num_finished,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            steps=counters.steps,
            mixed_steps=s.mixed_steps,
            failed_steps=counters.failed_steps,
            steps_ahead=s.steps_ahead,
            wait_reasons=dict(s.wait_reasons),
            scheduled_tokens=counters.tokens,
            padded_tokens=counters.padded_tokens,
            padding_share=counters.padding_share,
            step_kinds=dict(counters.kinds),
            graphs=self.parts.runner.graph_stats(),
            preemptions=s.preemptions,
            recomputed_tokens=s.recomputed_tokens,
            block_size=self.parts.block_size,
            num_blocks=self.parts.num_blocks,
            blocks_used=s.blocks_used,
            blocks_used_peak=s.blocks_used_peak,
            elapsed_s=counters.busy_s,
        )

    # -- inside -------------------------------------------------------------------------------

    def _given(self, params: Mapping[str, Any] | None) -> dict[str, Any]:
        if params is not None and not isinstance(params, Mapping):
            raise RequestError(
                "params", f"must be SamplingParams, a mapping or None, got {params!r:.60}"
            )
        return {**self._sampling, **(params or {})}

    def _encode(
        self,
        prompt: Prompt | None,
        chat: Chat | None,
        token_ids: Sequence[int] | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[str | None, list[int]]:
        given = [x for x in (prompt, chat, token_ids) if x is not None]
        if len(given) != 1:
            raise RequestError("prompt", "give exactly one of prompt, chat, token_ids")
        kind = "chat" if chat is not None else "token_ids" if token_ids is not None else None
        kind = kind or kind_of(given[0])
        if kind == "token_ids":
            return None, as_token_ids(given[0])
        if self.tokenizer is None:
            raise RequestError(kind, "this model has no tokenizer; give token_ids")
        if kind == "chat":
            text = self.tokenizer.render_chat(given[0], tools=tools)
            return text, self.tokenizer.encode(text, add_special_tokens=False)
        return given[0], self.tokenizer.encode(given[0])

    def _add_all(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: ParamsLike | Sequence[ParamsLike],
        request: Mapping[str, Any],
    ) -> tuple[list[str], DeltaStream]:
        """Queue them; when one is refused, the stream is let go of and ends the others."""
        listed = as_prompts(prompts)
        is_list = isinstance(params, Sequence) and not isinstance(params, str)
        each = list(params) if is_list else [params] * len(listed)
        if len(each) != len(listed):
            raise RequestError("params", f"{len(each)} given for {len(listed)} prompts")
        ids: list[str] = []
        deltas = DeltaStream(len(listed), self._advance, partial(self._abandon, ids))
        for number, (prompt, settings) in enumerate(zip(listed, each, strict=True)):
            try:
                ids.append(self.add_request(prompt, params=settings, **request))
            except RequestError as error:
                if len(listed) == 1:
                    raise
                raise error.of_item(number, len(listed)) from None
            self._inboxes[ids[-1]] = deltas.inbox
        return ids, deltas

    def _abandon(self, ids: list[str]) -> None:
        for request_id in ids:
            self.abort(request_id)
            self._inboxes.pop(request_id, None)

    def _free_id(self) -> str:
        return next(i for n in self._numbers if (i := f"req-{n}") not in self._live)

    def _advance(self) -> None:
        self._deliver(self.engine.step())

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        now_s = time.perf_counter()
        for output in outputs:
            name = output.request.request_id
            if name not in self._samples:
                continue
            live, index = self._samples[name]
            try:
                delta = live.advance(index, output, now_s)
            except Exception as error:  # of one request's text: the others go on
                log.exception("request %s: its text cannot be made", name)
                delta = live.fail(index, f"text: {type(error).__name__}: {error}", now_s)
            self._output_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._end_sample(live, index, still_runs=output.finish_reason is None)
            if delta.finished is not None:
                self._num_finished += 1
                self._cached_tokens += delta.finished.num_cached_tokens
                del self._live[live.request_id]
            self._inboxes.get(live.request_id, self._inbox).append(delta)

    def _end_sample(self, live: LiveRequest, index: int, still_runs: bool) -> None:
        sample = live.samples[index]
        del self._samples[sample.request.request_id]
        if still_runs:  # it ended by its text: a stop string, or text that cannot be made
            assert sample.finish_reason is not None
            self.engine.finish([sample.request.request_id], FinishReason.STOP, sample.stop_reason)
