"""The modes of a configuration as one: dispatch, capture, run, counts."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from attention_backends import Support
from graphs._capture.pool import Resources, Statics
from graphs._capture.report import MIB, CaptureReport
from graphs._dispatch.dispatcher import Dispatcher, DispatchStats
from graphs._dispatch.plugins import choose_modes, load_mode
from graphs._interface import GraphMode
from graphs._keys import Call, GraphError, GraphKey, Kind, run_in_place
from graphs._options import GraphOptions, check_equal

logger = logging.getLogger(__name__)

NOT_CAPTURED = "not captured yet"
CAPTURE_FAILED = "capture failed"


class GraphSet:
    """The decode mode and the mixed mode, one pool for those that share a recorder.

    Args:
        decode: value of `graphs.decode`.
        mixed: value of `graphs.mixed`.
        support: the attention backend's.
        device: where the model runs.
        max_num_seqs: most requests of a step.
        max_num_batched_tokens: most tokens of a step.
        max_model_len: most keys of a request.
        sizes: value of `graphs.sizes`.
        options: capture and debugging.
        statics: names buffers whose addresses graphs rely on, for `check_addresses`.

    Raises:
        GraphError: an unknown mode, one that cannot serve its case here, or a size that is none.
    """

    def __init__(
        self,
        decode: str,
        mixed: str,
        support: Support,
        device: torch.device,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        sizes: Sequence[int] | Literal["auto"] = "auto",
        options: GraphOptions | None = None,
        statics: Statics | None = None,
    ) -> None:
        self._support = support
        self._device = device
        self._options = options or GraphOptions()
        self._statics = statics
        self._decode, self._mixed = choose_modes(decode, mixed, support, device)
        self.dispatcher = Dispatcher(
            self._decode,
            self._mixed,
            support,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            sizes=sizes,
        )
        self.report = CaptureReport()
        self._modes = self._make_modes()
        self._uses: Counter[GraphKey] = Counter()
        self._failed: set[GraphKey] = set()
        self._num_replays = 0

    @property
    def modes(self) -> tuple[str, str]:
        """Names of the decode mode and of the mixed mode, `auto` resolved."""
        return self._decode.name, self._mixed.name

    def dispatch(
        self, num_tokens: int, num_reqs: int, max_query_len: int, max_seq_len: int = 0
    ) -> GraphKey:
        """See `Dispatcher.dispatch`."""
        return self.dispatcher.dispatch(num_tokens, num_reqs, max_query_len, max_seq_len)

    def captures(self, key: GraphKey) -> bool:
        """Whether there is, or will be, a graph for the key."""
        return self._modes[key.kind].captures

    def stats(self) -> DispatchStats:
        """The live counters."""
        return self.dispatcher.stats()

    def keys_to_capture(self) -> list[GraphKey]:
        """The buckets that `capture` will capture, in order."""
        return [key for key in self.dispatcher.capture_keys() if self._modes[key.kind].captures]

    def captures_at_use(self, key: GraphKey) -> bool:
        """Whether the key is captured when it first runs: the call of that run then serves all
        replays, and must be kept."""
        return self._modes[key.kind].captures_at_use > 0

    def capture(
        self,
        make_call: Callable[[GraphKey], Call],
        progress: Callable[[Iterable[GraphKey]], Iterable[GraphKey]] = iter,
    ) -> CaptureReport:
        """Capture every bucket, the largest first; nothing under `lazy_after`, nor what is captured
        at its first use.

        Args:
            make_call: fills the buffers with a harmless batch of the key's padded sizes and gives
                the forward over them.
            progress: wraps the keys, such as a progress bar.

        Raises:
            GraphError: with the bucket and the reason.
        """
        if self._options.lazy_after:
            return self.report
        gc.collect()
        keys = [key for key in self.keys_to_capture() if not self.captures_at_use(key)]
        for key in progress(keys):
            self._capture(self._modes[key.kind], key, make_call(key))
        report = self.report
        if report.records:
            logger.info(
                "captured %d graphs in %.1f s, %.1f MiB",
                len(report.records),
                report.seconds,
                report.memory_bytes / MIB,
            )
        return report

    def estimate_bytes(self, make_call: Callable[[GraphKey], Call]) -> int:
        """Memory that `capture` will need, from trial captures of each kind's two largest buckets
        in pools that are thrown away. The caller gives a small KV pool for it."""
        total = 0
        for kind in Kind:
            keys = [key for key in self.keys_to_capture() if key.kind is kind]
            if not keys or self._modes[kind].captures_at_use:
                continue
            mode = self._make_modes()[kind]
            records = [mode.capture(key, make_call(key)) for key in keys[:2]]
            mode.close()
            costs = [record.memory_bytes for record in records if record]
            total += costs[0] + (len(keys) - 1) * max(costs[-1], MIB)
        return total

    def run(self, key: GraphKey, call: Call) -> Tensor:
        """Run a step in the mode of its key.

        Args:
            key: from `dispatch`.
            call: the forward over buffers that were padded for the key.

        Returns:
            [T, hidden], valid until the next run.

        Raises:
            GraphError: the key was never captured, or a check failed.
        """
        options = self._options
        if options.before_run:
            options.before_run(key)
        mode = self._modes[key.kind]
        if mode.captures and not self._is_ready(mode, key, call):
            hidden = call(run_in_place)
        else:
            hidden = mode.run(key, call)
            if mode.captures:
                self._compare(key, call, hidden)
        if options.after_run:
            options.after_run(key, hidden)
        return hidden

    def close(self) -> None:
        """Drop all graphs and their memory; before process groups and backends are closed."""
        for mode in self._modes.values():
            mode.close()

    def _make_modes(self) -> dict[Kind, GraphMode]:
        """One mode per kind; they share a pool among them, and nothing with earlier ones."""
        resources = Resources(
            support=self._support,
            device=self._device,
            max_tokens=self.dispatcher.max_tokens_padded,
            num_warm_ups=self._options.num_warm_ups,
            statics=self._statics,
            check_addresses=self._options.check_addresses,
        )
        chosen = {Kind.EAGER: load_mode("eager")}
        for mode, kind in (
            (self._decode, self._decode.kind_of_decode),
            (self._mixed, self._mixed.kind_of_mixed),
        ):
            assert kind is not None, "choose_modes admits only modes that serve the case"
            chosen[kind] = mode
        made = {mode: mode(resources) for mode in dict.fromkeys(chosen.values())}
        return {kind: made[mode] for kind, mode in chosen.items()}

    def _capture(self, mode: GraphMode, key: GraphKey, call: Call) -> None:
        record = mode.capture(key, call)
        if record is not None:
            self.report.records.append(record)
            logger.debug("captured %s in %.2f s", key, record.seconds)

    def _is_ready(self, mode: GraphMode, key: GraphKey, call: Call) -> bool:
        """Whether the key can be replayed; under `lazy_after`, and in modes that capture at use, it
        is captured at its k-th use. One that cannot be captured then runs in place for good: the
        engine is serving."""
        lazy_after = self._options.lazy_after or mode.captures_at_use
        if mode.has(key) or not lazy_after:
            return True
        reasons = self.stats().eager_reasons
        if key.graph in self._failed:
            reasons[CAPTURE_FAILED] += 1
            return False
        self._uses[key.graph] += 1
        if self._uses[key.graph] < lazy_after:
            reasons[NOT_CAPTURED] += 1
            return False
        try:
            self._capture(mode, key, call)
        except GraphError:
            logger.exception("%s stays without a graph", key)
            self._failed.add(key.graph)
            reasons[CAPTURE_FAILED] += 1
            return False
        return True

    def _compare(self, key: GraphKey, call: Call, hidden: Tensor) -> None:
        options = self._options
        self._num_replays += 1
        if not options.compare_every or self._num_replays % options.compare_every:
            return
        with torch.inference_mode():
            expected = call(run_in_place)
        check_equal(key, hidden, expected)
