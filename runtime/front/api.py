"""Runtime: text in, text out.

One engine, its tokenizer, and the requests that users gave it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from runtime.config import RunConfig, RuntimeConfig, load_run_config
from runtime.data.params import SamplingParams
from runtime.data.prompts import Chat, Prompt, as_prompts, check_fields
from runtime.data.results import Delta, Result
from runtime.engine import Engine
from runtime.errors import EngineError, RequestError
from runtime.front.build import Parts, build_engine
from runtime.front.delta_stream import DeltaStream
from runtime.front.input_processor import InputProcessor, ParamsLike, Prepared
from runtime.front.live_request import LiveRequest
from runtime.front.output_processor import OutputProcessor
from runtime.models import ModelSpec
from runtime.observe.stats import RuntimeStats
from runtime.observe.steps import StepObserver
from runtime.text import Tokenizer

log = logging.getLogger(__name__)


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
        self.inputs = InputProcessor(self._parts, self._sampling)
        """Encodes and checks, on any thread, what `submit` queues."""
        self._outputs = OutputProcessor(self._parts.engine)
        self._numbers = itertools.count()
        self._prompt_tokens = 0

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
        for request_id in list(self._outputs.live):
            self.abort(request_id)
        self._outputs.take()
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
        self.parts  # noqa: B018  # of a closed runtime: an error
        text, ids = self.inputs.encode(prompt, chat, token_ids, tools)
        prepared = Prepared(text, ids, self.inputs.settle_params(params))
        return self.submit(
            prepared,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            arrival_s=arrival_s,
        )

    def submit(
        self,
        prepared: Prepared,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_s: float | None = None,
    ) -> str:
        """Queue what `inputs` has encoded and checked; the rest is as for `add_request`."""
        parts = self.parts
        check_fields(request_id, priority, cache_salt)
        ids, settled = prepared.token_ids, prepared.params
        request_id = self._free_id() if request_id is None else request_id
        if request_id in self._outputs.live:
            raise RequestError("request_id", f"{request_id!r} is already in use")
        group = f"{request_id}/{next(self._numbers)}" if settled.n > 1 else None
        samples = self.inputs.samples(
            request_id,
            group,
            ids,
            settled,
            priority=priority,
            cache_salt=cache_salt,
            arrival_s=arrival_s,
        )
        self._outputs.add(LiveRequest(request_id, prepared.text, ids, settled, samples))
        for sample in samples:
            parts.engine.add(sample.request)
        self._prompt_tokens += len(ids)
        return request_id

    def step(self) -> list[Delta]:
        """Run one step of the engine; the deltas of every request that `add_request` queued."""
        self._advance()
        return self._outputs.take()

    def has_unfinished(self) -> bool:
        """Whether a request still runs or a delta still waits to be fetched by `step`."""
        return bool(self._outputs.inbox) or (
            self._parts is not None and self.engine.has_unfinished()
        )

    def abort(self, request_id: str) -> None:
        """End a request now, with finish_reason "abort"; its last delta comes with the next `step`.

        Unknown and finished ids are ignored.
        """
        self._outputs.abort(request_id)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing changes, while requests hold blocks."""
        return self.engine.scheduler.reset_prefix_cache()

    def settle_params(self, params: ParamsLike) -> SamplingParams:
        """The SamplingParams of a request: where it gives none, the runtime's `sampling`, then the
        model's generation_config.

        Raises:
            RequestError: a field out of its range, for this model's vocabulary too.
        """
        self.parts  # noqa: B018  # of a closed runtime: an error
        return self.inputs.settle_params(params)

    def stats(self) -> RuntimeStats:
        """Counters since the runtime was made."""
        counters, scheduler = self.engine.counters, self.engine.scheduler
        s = scheduler.stats
        return RuntimeStats(
            num_requests=self._outputs.num_finished + len(self._outputs.live),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_finished=self._outputs.num_finished,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._outputs.cached_tokens,
            output_tokens=self._outputs.output_tokens,
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
            self._outputs.claim(ids[-1], deltas.inbox)
        return ids, deltas

    def _abandon(self, ids: list[str]) -> None:
        for request_id in ids:
            self.abort(request_id)
        self._outputs.disclaim(ids)

    def _free_id(self) -> str:
        return next(i for n in self._numbers if (i := f"req-{n}") not in self._outputs.live)

    def _advance(self) -> None:
        self._outputs.deliver(self.engine.step())
