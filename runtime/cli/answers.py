"""Prints answers in the order of the requests, and the progress bar that they must not disturb."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from runtime.cli.drive import Ended
from runtime.cli.work import Job
from runtime.data.results import Completion, Delta


class Answers:
    """Each answer under the first line of its prompt, in the order of the requests.

    Args:
        live: the answer whose turn it is appears as it is generated; the others wait.
        as_ids: the answer is its token ids, since no tokenizer makes a text of them.
    """

    def __init__(self, write: Callable[[str], None], live: bool, as_ids: bool = False) -> None:
        self._write, self._live, self._as_ids = write, live, as_ids
        self._turn = 0
        self._texts: dict[int, list[str]] = defaultdict(list)
        self._ended: dict[int, Ended] = {}
        self._has_title = False

    def on_delta(self, job: Job, delta: Delta) -> None:
        text = self._text_of(delta)
        if self._live and delta.index == 0 and text:
            self._texts[job.index].append(text)
            if job.index == self._turn:
                self._catch_up(job)

    def on_end(self, ended: Ended) -> None:
        self._ended[ended.job.index] = ended
        while self._turn in self._ended:
            self._finish(self._ended.pop(self._turn))
            self._turn += 1
            self._has_title = False

    def _catch_up(self, job: Job) -> None:
        """The title, and what the answer has by now."""
        if not self._has_title:
            self._write(f"[{job.index}] {job.title}\n")
            self._has_title = True
        self._write("".join(self._texts.pop(job.index, ())))

    def _finish(self, ended: Ended) -> None:
        result = ended.result
        if not self._live and result is not None:
            self._texts[ended.job.index].append(self._text_of(result.outputs[0]))
        self._catch_up(ended.job)
        lines = []
        if result is not None:
            lines = [""] if self._text_of(result.outputs[0]) else []
            lines += [f"(sample {o.index}) {self._text_of(o)}" for o in result.outputs[1:]]
        if ended.error:
            lines.append(f"error: {ended.error}")
        elif ended.finish_reason == "abort":
            lines.append("(interrupted)")
        self._write("\n".join(lines) + "\n\n")

    def _text_of(self, piece: Delta | Completion) -> str:
        if not self._as_ids:
            return piece.text
        return "".join(f"{token_id} " for token_id in piece.token_ids)


class Bar:
    """Requests done, tokens and tokens per second, on standard error."""

    def __init__(self, console: Console, num_jobs: int) -> None:
        self.progress = Progress(
            TextColumn("generating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests  {task.fields[tokens]} tokens  {task.fields[rate]}"),
            TimeElapsedColumn(),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self.progress.add_task("", total=num_jobs, tokens=0, rate="")
        self._num_tokens = 0

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def on_delta(self, job: Job, delta: Delta) -> None:
        self._num_tokens += len(delta.token_ids)
        seconds = self.progress.tasks[0].elapsed
        rate = f"{self._num_tokens / seconds:.0f} tokens/s" if seconds else ""
        self.progress.update(self._task, tokens=self._num_tokens, rate=rate)

    def on_end(self, ended: Ended) -> None:
        self.progress.advance(self._task)
