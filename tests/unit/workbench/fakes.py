"""A Runtime whose steps take exactly as long as told, on a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from runtime.data.results import Completion, Delta, Result, Timing
from runtime.errors import RequestError
from runtime.workbench.client import Clock
from runtime.workbench.records import RequestRecord


class VirtualClock(Clock):
    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s
        self.slept_s = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 1e-9)  # below a float's step the clock would stand
        self.slept_s += seconds


class VirtualRuntime:
    """Each step takes `step_s` and gives every request a token; a prompt of 13 is refused, a
    prompt of [7] fails."""

    def __init__(self, clock: VirtualClock, step_s: float) -> None:
        self.clock, self.step_s = clock, step_s
        self.live: dict[str, SimpleNamespace] = {}
        self.added: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.num_resets = 0
        self.num_steps = 0
        self.most_live = 0

    def add_request(self, prompt: str | None = None, **request: Any) -> str:
        if request["token_ids"] == [13]:
            raise RequestError("prompt", "is unlucky")
        self.added.append(request)
        name = f"r{len(self.added)}"
        self.live[name] = SimpleNamespace(**request, times=[])
        self.most_live = max(self.most_live, len(self.live))
        return name

    def step(self) -> list[Delta]:
        self.clock.now_s += self.step_s
        self.num_steps += 1
        return [self._advance(name) for name in list(self.live)]

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def has_unfinished(self) -> bool:
        return bool(self.live)

    def reset_prefix_cache(self) -> bool:
        self.num_resets += 1
        return True

    def stats(self) -> SimpleNamespace:
        from runtime.workbench.session import COUNTED

        counts = {**dict.fromkeys(COUNTED, 0), "steps": self.num_steps}
        return SimpleNamespace(**counts, blocks_used_peak=3, num_blocks=9)

    def _advance(self, name: str) -> Delta:
        live = self.live[name]
        live.times.append(self.clock.now_s)
        result = None
        if len(live.times) == live.params["max_tokens"] or live.token_ids == [7]:
            del self.live[name]
            result = self._result(name, live)
        return Delta(name, 0, "x", (5,), None, None, result)

    def _result(self, name: str, live: SimpleNamespace) -> Result:
        times, arrival_s = live.times, live.arrival_s
        gaps = tuple(b - a for a, b in pairwise(times))
        timing = Timing(0.0, times[0] - arrival_s, times[-1] - arrival_s, gaps)
        error = "went wrong" if live.token_ids == [7] else None
        ids = (5,) * len(times)
        completion = Completion(0, "x" * len(ids), ids, "length", None, error, None, 0, timing)
        return Result(name, None, tuple(live.token_ids), 1, None, (completion,))


def record(
    index: int = 0,
    *,
    due_s: float = 0.0,
    sent_s: float = 0.0,
    ttft_s: float | None = 1.0,
    itl_s: Sequence[float] = (),
    error: str | None = None,
    inputs: int = 10,
) -> RequestRecord:
    """A record whose tokens and latency follow from its times."""
    outputs = 0 if ttft_s is None else 1 + len(itl_s)
    latency_s = (ttft_s or 0.0) + sum(itl_s)
    times = (ttft_s, tuple(itl_s), latency_s)
    return RequestRecord(index, due_s, sent_s, inputs, 2, outputs, *times, "text", error)
