"""From a step's tokens to RequestOutputs: append, stop check, ends."""

from __future__ import annotations

from itertools import repeat

import numpy as np

from runtime.data.request import FinishReason, Request
from runtime.data.step import IntArray, Logprobs, RequestOutput, RunnerOutput, SchedulerOutput
from runtime.scheduler.draft import Flight
from runtime.scheduler.rows import RowIndex
from runtime.scheduler.state import SchedulerState


def append_tokens(
    state: SchedulerState, rows: RowIndex, token_ids: IntArray, logprobs: list[Logprobs | None]
) -> list[RequestOutput]:
    """Appends one token to each row, and ends the requests that are done.

    Args:
        logprobs: one entry a row, or empty where no request asked.
    """
    table = state.table
    num_tokens = table.num_tokens[rows] + 1
    table.num_tokens[rows] = num_tokens
    if not state.runs_ahead:
        table.num_expected[rows] = num_tokens
    is_stopped = table.is_stopped(rows, token_ids, num_tokens)
    is_ending = is_stopped | (num_tokens >= table.limit[rows])
    requests: list[Request] = table.requests[rows].tolist()
    tokens: list[int] = token_ids.tolist()
    for request, token_id in zip(requests, tokens, strict=True):
        request.token_ids.append(token_id)
    outputs = _make_outputs(requests, tokens)
    for i, entry in enumerate(logprobs):
        outputs[i] = outputs[i]._replace(logprobs=entry)
    if state.prompt_logprobs:
        for i, request in enumerate(requests):
            found = state.prompt_logprobs.pop(request.request_id, None)
            outputs[i] = outputs[i]._replace(prompt_logprobs=found)
    for i in np.flatnonzero(is_ending).tolist():
        reason = FinishReason.STOP if is_stopped[i] else FinishReason.LENGTH
        stop_id = tokens[i] if is_stopped[i] and not _is_eos(requests[i], tokens[i]) else None
        state.end(requests[i], reason, stop_id)
        outputs[i] = outputs[i]._replace(finish_reason=reason)
    return outputs


def collect_prompt_logprobs(
    state: SchedulerState, so: SchedulerOutput, ro: RunnerOutput, flight: Flight
) -> None:
    """Keeps a chunk's share; what a resumed request computes once more is not wanted twice."""
    if not ro.prompt_logprobs:
        return
    for row in so.rows[state.is_alive(so.rows, flight.epochs)].tolist():
        share = ro.prompt_logprobs.get(row)
        kept = state.prompt_logprobs.get(state.table.requests[row].request_id)
        if share is not None and kept is not None:
            kept += share


def _make_outputs(requests: list[Request], token_ids: list[int]) -> list[RequestOutput]:
    """RequestOutput(request, token_id) of each.

    tuple.__new__ over zipped columns makes the same objects without a Python call for each: a third
    of the time at 1,024 requests.
    """
    columns = zip(requests, token_ids, repeat(None), repeat(None), repeat(None), strict=False)
    return list(map(tuple.__new__, repeat(RequestOutput), columns))


def _is_eos(request: Request, token_id: int) -> bool:
    return request.params.heeds_eos and token_id in request.eos_token_ids
