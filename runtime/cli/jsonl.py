"""The output file: a line of JSON per request, written as the request ends."""

from __future__ import annotations

import json
import math
import os
import stat
from contextlib import suppress
from typing import Any, TextIO

from runtime.cli.drive import Ended
from runtime.cli.work import Job
from runtime.errors import ConfigError
from runtime.results import Completion, Delta
from runtime.step import Logprobs


class JsonlWriter:
    """Opened before the model is loaded, so that a path that cannot be written costs no time.

    What an older file holds is replaced only when the first line is written.

    Raises:
        ConfigError: the path cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # backslashreplace makes a lone surrogate the escape that JSON has for it
            self._file: TextIO = open(  # noqa: SIM115
                path, "a", encoding="utf-8", errors="backslashreplace"
            )
        except OSError as error:
            raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from None
        self._is_fresh = False

    def on_delta(self, job: Job, delta: Delta) -> None:
        """Nothing: a line is written whole."""

    def on_end(self, ended: Ended) -> None:
        line = json.dumps(line_of(ended), ensure_ascii=False, allow_nan=False)
        try:
            if not self._is_fresh:
                if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                    os.ftruncate(self._file.fileno(), 0)
                self._is_fresh = True
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def close(self) -> None:
        """A write that failed was reported already."""
        with suppress(OSError):
            self._file.close()


def line_of(ended: Ended) -> dict[str, Any]:
    """The fields of one line: those of the first sample, and `samples` where there are several."""
    result = ended.result
    line: dict[str, Any] = {"index": ended.job.index}
    if result is None:
        line |= {"text": "", "token_ids": [], "finish_reason": ended.finish_reason}
        return line | {
            "stop_reason": None,
            "error": ended.error,
            "num_prompt_tokens": 0,
            "num_cached_tokens": 0,
            "num_output_tokens": 0,
        }
    first, *others = [_sample(output) for output in result.outputs]
    line |= first
    line |= {
        "finish_reason": ended.finish_reason,
        "error": ended.error,
        "num_prompt_tokens": result.num_prompt_tokens,
        "num_cached_tokens": result.num_cached_tokens,
        "num_output_tokens": result.num_output_tokens,
    }
    if result.prompt_logprobs is not None:
        line["prompt_logprobs"] = [p and _logprobs(p) for p in result.prompt_logprobs]
    if others:
        line["samples"] = [first, *others]
    return line


def _sample(output: Completion) -> dict[str, Any]:
    timing = output.timing
    fields: dict[str, Any] = {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "error": output.error,
        "num_preemptions": output.num_preemptions,
        "queue_s": timing.queue_s,
        "ttft_s": timing.ttft_s,
        "e2e_s": timing.e2e_s,
    }
    if output.logprobs is not None:
        fields["logprobs"] = [_logprobs(position) for position in output.logprobs]
    return fields


def _logprobs(position: Logprobs) -> list[dict[str, Any]]:
    """JSON has no infinity: a token that could not be drawn has null."""
    return [
        {
            "token_id": int(entry.token_id),
            "logprob": float(entry.logprob) if math.isfinite(entry.logprob) else None,
            "rank": int(entry.rank),
        }
        for entry in position
    ]
