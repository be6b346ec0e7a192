"""What `bench` shows while it runs: a live table on a terminal, else a line now and then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from runtime.observe.stats import percentile
from runtime.workbench.client import Progress
from runtime.workbench.records import RequestRecord

_TABLE_EVERY_S, _LINE_EVERY_S = 0.25, 10.0


def watcher_on(console: Console, num_requests: int) -> Screen:
    """The one that suits the console."""
    return LiveTable(console, num_requests) if console.is_terminal else Lines(console, num_requests)


class Screen(AbstractContextManager["Screen"]):
    """Shows the state again when enough time has passed, between two steps.

    Args:
        every_s: seconds between two showings; a thread of its own would disturb the steps.
    """

    def __init__(self, num_requests: int, every_s: float) -> None:
        self._num_requests, self._every_s = num_requests, every_s
        self._shown_s = 0.0
        self._num_ended = 0
        self._ttfts_s: list[float] = []
        self._itls_s: list[float] = []

    def on_step(self, progress: Progress) -> None:
        if progress.time_s < self._shown_s:  # another batch has begun
            self._shown_s = 0.0
        if progress.time_s - self._shown_s >= self._every_s:
            self._shown_s = progress.time_s
            self.show(progress)

    def on_end(self, record: RequestRecord) -> None:
        self._num_ended += 1
        self._itls_s += record.itl_s
        if record.ttft_s is not None:
            self._ttfts_s.append(record.ttft_s)

    def show(self, progress: Progress) -> None:
        raise NotImplementedError

    def _rows(self, progress: Progress) -> dict[str, str]:
        tokens, seconds = progress.num_output_tokens, progress.time_s
        return {
            "requests": f"{self._num_ended:,} of {self._num_requests:,}",
            "in the engine": f"{progress.num_running:,}",
            "tokens/s": f"{tokens / seconds:,.1f}" if seconds > 0 else "-",
            "TTFT p50 / p99": _percentiles(self._ttfts_s),
            "ITL p50 / p99": _percentiles(self._itls_s),
            "seconds": f"{seconds:,.0f}",
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to take down."""


class Lines(Screen):
    def __init__(self, console: Console, num_requests: int) -> None:
        super().__init__(num_requests, _LINE_EVERY_S)
        self._print: Callable[..., None] = console.print

    def show(self, progress: Progress) -> None:
        parts = [f"{name} {value}" for name, value in self._rows(progress).items()]
        self._print(f"stepgraph: {', '.join(parts)}", soft_wrap=True, highlight=False)


class LiveTable(Screen):
    def __init__(self, console: Console, num_requests: int) -> None:
        super().__init__(num_requests, _TABLE_EVERY_S)
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def show(self, progress: Progress) -> None:
        table = Table(show_header=False)
        for name, value in self._rows(progress).items():
            table.add_row(name, value)
        self._live.update(table, refresh=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


def _percentiles(values_s: list[float]) -> str:
    p50, p99 = percentile(values_s, 50), percentile(values_s, 99)
    if p50 is None or p99 is None:
        return "-"
    return f"{p50 * 1e3:,.1f} / {p99 * 1e3:,.1f} ms"
