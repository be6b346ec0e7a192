"""The JSONL output: a line per request, written as the request ends."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from runtime.cli.drive import Ended
from runtime.cli.work import Job
from runtime.data.results import Completion, Delta
from runtime.data.step import Logprobs
from runtime.errors import ConfigError


class JsonlWriter:
    """Opened before the model is loaded, so that a path that cannot be written costs no time.

    What an older file holds is replaced only when the first line is written.

    Args:
        path: the file; "-" is standard output.

    Raises:
        ConfigError: the path cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._is_stdout = path == "-"
        self._file: BinaryIO = sys.stdout.buffer if self._is_stdout else _open(path)
        self._is_fresh = self._is_stdout

    def on_delta(self, job: Job, delta: Delta) -> None:
        """Nothing: a line is written whole."""

    def on_end(self, ended: Ended) -> None:
        line = json.dumps(line_of(ended), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            if not self._is_fresh:
                if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                    os.ftruncate(self._file.fileno(), 0)
                self._is_fresh = True
            # backslashreplace makes a lone surrogate the escape that JSON has for it
            self._file.write(line.encode("utf-8", "backslashreplace"))
            self._file.flush()
        except OSError as error:
            if self._is_stdout:
                raise
            raise OSError(error.errno, error.strerror, self.path) from None

    def close(self) -> None:
        """A write that failed was reported already."""
        if not self._is_stdout:
            with suppress(OSError):
                self._file.close()


def _open(path: str) -> BinaryIO:
    try:
        return open(path, "ab")
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from None


def line_of(ended: Ended) -> dict[str, Any]:
    """One line. It has the same fields for every request; null is what is not known of it.

    They are those of the first sample; `samples` holds all of them where there are several.
    """
    result, job = ended.result, ended.job
    outputs = result.outputs if result else ()
    first = _sample(outputs[0]) if outputs else _NO_SAMPLE
    prompt_logprobs = result and result.prompt_logprobs
    return {
        "index": job.index,
        "id": job.id,
        "line": job.line,
        **first,
        "finish_reason": ended.finish_reason,
        "error": ended.error,
        "num_prompt_tokens": result and result.num_prompt_tokens,
        "num_cached_tokens": result and result.num_cached_tokens,
        "num_output_tokens": result.num_output_tokens if result else 0,
        "prompt_logprobs": prompt_logprobs and [p and _logprobs(p) for p in prompt_logprobs],
        "samples": [_sample(output) for output in outputs] if len(outputs) > 1 else None,
    }


_NO_SAMPLE: dict[str, Any] = {
    "text": "",
    "token_ids": [],
    "finish_reason": None,
    "stop_reason": None,
    "error": None,
    "num_preemptions": 0,
    "queue_s": None,
    "ttft_s": None,
    "e2e_s": None,
    "logprobs": None,
}


def _sample(output: Completion) -> dict[str, Any]:
    timing = output.timing
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "error": output.error,
        "num_preemptions": output.num_preemptions,
        "queue_s": timing.queue_s,
        "ttft_s": timing.ttft_s,
        "e2e_s": timing.e2e_s,
        "logprobs": output.logprobs and [_logprobs(position) for position in output.logprobs],
    }


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
