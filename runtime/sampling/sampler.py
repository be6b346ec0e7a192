"""Sampler: logits of a step's rows in, one token per row out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.step import IntArray, Logprobs, NewRow
from runtime.errors import RequestError
from runtime.ops.transfer import HostCopy, reading_is_free, upload
from runtime.sampling.blocks import BlockedScores, copy_rows
from runtime.sampling.checks import check_ids
from runtime.sampling.draw import (
    OPEN,
    draw_from_head,
    draw_sorted,
    draw_truncated,
    draw_untruncated,
    rows_per_chunk,
)
from runtime.sampling.edits import (
    AllowedIds,
    BadWords,
    Edit,
    LogitBias,
    MinTokens,
    Processors,
    TokenizerLike,
    Work,
)
from runtime.sampling.logprobs import logprobs_of
from runtime.sampling.penalties import Penalties
from runtime.sampling.rows import RowTable
from runtime.sampling.structured import Grammars, Structured

NO_TOKEN, BAD_LOGITS = -1, -2
"""Stand for a token: nothing may be sampled; the model's logits are not finite. OPEN is -3."""
NOT_FINITE = "logits: the model gave NaN or infinity here"
NONE_LEFT = (
    "no token can be sampled: together allowed_token_ids, bad_words, min_tokens, structured_output "
    "and logits_processors exclude the whole vocabulary here"
)
EDIT_CHUNKS = 8
"""Rows are edited in parts of so many scratch chunks: fewer calls, still small memory."""


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What one call sampled, in the order of its rows.

    Attributes:
        token_ids: [S]; -1 where `errors` says why there is none.
        errors: index into S -> why that request must end.
        logprobs: [S], or None where no row of the call asked.
        late: indexes into S of tokens that the device does not have: see `PendingSample`.
        bad_logits: those of `errors` whose logits were not finite.
    """

    token_ids: IntArray
    errors: dict[int, str] = field(default_factory=dict)
    logprobs: list[Logprobs | None] | None = None
    late: tuple[int, ...] = ()
    bad_logits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingSample:
    """Tokens that the device samples, or has sampled.

    Attributes:
        token_ids: [S] int32 on the device; negative where there is none, or where `read` settles
            it (`SamplerOutput.late`).
    """

    token_ids: Tensor
    _copy: HostCopy
    _settle: Callable[[IntArray], SamplerOutput]

    def read(self) -> SamplerOutput:
        """Wait for the tokens. Rows whose request has left since get anything."""
        return self._settle(self._copy.read())


class Sampler:
    """Samples for the rows of one runner.

    A row's token is a function of its logits, params, known tokens and position: not of the other
    rows, their order, or how the request came there. The way of the logits: allowed ids, structured
    output, bad words, min_tokens, logit_bias, processors, penalties, then (see `draw`) temperature,
    min-p, top-k, top-p. Rows that nothing edits are read where the model wrote them; greedy rows
    need no more than their arg-max. Log-probabilities are of the model's own logits.

    On a GPU the host waits once in a step, for the token ids; once more for log-probabilities, for
    users' processors, and for rows whose tokens their heads could not tell.
    """

    def __init__(
        self,
        vocab_size: int,
        token_ids: npt.NDArray[np.int32],
        device: torch.device | str,
        *,
        tokenizer: TokenizerLike | None = None,
        num_valid_ids: int | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """
        Args:
            vocab_size: V, the width of the logits.
            token_ids: [max_num_seqs, max_model_len] known tokens of every row; never written here.
            tokenizer: for `bad_words`.
            num_valid_ids: ids from here up pad the model's vocabulary: never sampled nor listed.
            grammars: for `structured_output`; share the one that requests are checked with.
        """
        self.vocab_size = vocab_size
        self.num_valid_ids = vocab_size if num_valid_ids is None else num_valid_ids
        self.device = torch.device(device)
        self._token_ids = token_ids
        self._table = RowTable(len(token_ids), self.num_valid_ids)
        self._structured = Structured(grammars, token_ids)
        self._min_tokens = MinTokens()
        self._edits: tuple[Edit, ...] = (
            AllowedIds(),
            self._structured,
            BadWords(tokenizer),
            self._min_tokens,
            LogitBias(),
            Processors(),
            Penalties(),
        )
        self._refused: dict[int, str] = {}
        self._scratch = torch.empty(0, device=self.device)
        self._may_read = reading_is_free(self.device)

    def add(self, new: NewRow) -> None:
        """A request enters a row, for the first time or again after a preemption.

        One that cannot be served (see `check_params`) ends with an error when it is sampled.
        """
        self.drop(new.row)
        self._table.set(new)
        try:
            check_ids(new.params, self.vocab_size)
            edited = [edit.add(new) and edit is not self._min_tokens for edit in self._edits]
            self._table.is_edited[new.row] = any(edited)
        except RequestError as error:
            self._refused[new.row] = str(error)

    def drop(self, row: int) -> None:
        """The row's request has left; nothing if the row is empty."""
        self._refused.pop(row, None)
        for edit in self._edits:
            edit.drop(row)

    def prepare(self, rows: IntArray, num_tokens: IntArray) -> None:
        """Start what can run beside the forward of the step that will sample `rows`."""
        self._structured.prepare(rows, num_tokens)

    def sample(self, logits: Tensor, rows: IntArray, num_tokens: IntArray) -> SamplerOutput:
        """`launch`, and wait for it; of no rows, nothing."""
        if not len(rows):
            return SamplerOutput(np.zeros(0, np.int32))
        return self.launch(logits, rows, num_tokens).read()

    @torch.inference_mode()
    def launch(self, logits: Tensor, rows: IntArray, num_tokens: IntArray) -> PendingSample:
        """Queue the sampling of a step.

        Args:
            logits: [S, V], any float dtype; not changed.
            rows: [S] distinct rows, one at least.
            num_tokens: [S] known tokens of each row: the position of the new one.
        """
        scores = BlockedScores(logits[:, : self.num_valid_ids])
        edited = self._table.is_edited[rows] | (num_tokens < self._table.min_num_tokens[rows])
        errors = {
            i: self._refused[row] for i, row in enumerate(rows.tolist()) if row in self._refused
        }
        if not edited.any():
            tokens = self._choose(scores, None, rows, num_tokens, BAD_LOGITS)
        else:
            tokens = torch.empty(len(rows), dtype=torch.int64, device=self.device)
            if not edited.all():
                plain = np.flatnonzero(~edited)
                of = (rows[plain], num_tokens[plain])
                tokens[self._tensor(plain)] = self._choose(scores, plain, *of, BAD_LOGITS)
            self._sample_edited(scores, np.flatnonzero(edited), rows, num_tokens, tokens, errors)
        tokens = tokens.to(torch.int32)
        settle = partial(self._settle, scores, rows, num_tokens, errors)
        return PendingSample(tokens, self._read(tokens), settle)

    @torch.inference_mode()
    def _settle(
        self,
        scores: BlockedScores,
        rows: IntArray,
        num_tokens: IntArray,
        errors: dict[int, str],
        out: IntArray,
    ) -> SamplerOutput:
        """What the host has to do once it knows the tokens `out` [S]."""
        still_open = np.flatnonzero(out == OPEN)
        if len(still_open):
            params = self._table.draw_params(rows[still_open], num_tokens[still_open], self.device)
            drawn = draw_sorted(scores, self._tensor(still_open), params)
            out[still_open] = self._read(drawn.to(torch.int32)).read()
        for i in np.flatnonzero(out < 0).tolist():
            errors[i] = NOT_FINITE if out[i] == BAD_LOGITS else errors.get(i, NONE_LEFT)
        bad_logits = tuple(np.flatnonzero(out == BAD_LOGITS).tolist())
        out[list(errors)] = -1
        logprobs = self._logprobs(scores, rows, out)
        return SamplerOutput(out, errors, logprobs, tuple(still_open.tolist()), bad_logits)

    def prompt_logprobs(self, logits: Tensor, row: int, target_ids: IntArray) -> list[Logprobs]:
        """Of given tokens: logits [K, V] at the positions before `target_ids` [K]."""
        scores = BlockedScores(logits[:, : self.num_valid_ids])
        index = torch.arange(len(target_ids), device=self.device)
        num_top = [int(self._table.prompt_logprobs[row])] * len(target_ids)
        targets = self._tensor(np.asarray(target_ids, np.int64))
        return logprobs_of(scores, index, targets, num_top)

    def close(self) -> None:
        """End the worker thread, if there is one."""
        self._structured.close()

    def _choose(
        self,
        scores: BlockedScores,
        index: npt.NDArray[np.int64] | None,
        rows: IntArray,
        num_tokens: IntArray,
        bad: int,
        *,
        is_final: bool = False,
    ) -> Tensor:
        """[m] int64 tokens of the rows `index` [m] of `scores`, None for all of them.

        A row whose largest score is not finite gets `bad`. On a GPU one may be OPEN, unless
        `is_final`, where the scores will not be there later.
        """
        finite = scores.max.isfinite()
        if index is not None:
            finite = finite[self._tensor(index)]
        return torch.where(finite, self._draw(scores, index, rows, num_tokens, is_final), bad)

    def _draw(
        self,
        scores: BlockedScores,
        index: npt.NDArray[np.int64] | None,
        rows: IntArray,
        num_tokens: IntArray,
        is_final: bool,
    ) -> Tensor:
        table = self._table
        greedy = table.is_greedy[rows]
        if greedy.any():
            tokens = scores.argmax() if index is None else scores.argmax()[self._tensor(index)]
            if greedy.all():
                return tokens
        else:
            tokens = torch.empty(len(rows), dtype=torch.int64, device=self.device)
        truncated = table.is_truncated[rows]
        truncate = draw_truncated
        if not self._may_read:
            truncate = draw_sorted if is_final else draw_from_head
        for chosen, draw in (
            (~greedy & truncated, truncate),
            (~greedy & ~truncated, draw_untruncated),
        ):
            if chosen.any():
                where = np.flatnonzero(chosen)
                params = table.draw_params(rows[where], num_tokens[where], self.device)
                of = self._tensor(where if index is None else index[where])
                tokens[self._tensor(where)] = draw(scores, of, params)
        return tokens

    def _sample_edited(
        self,
        scores: BlockedScores,
        index: npt.NDArray[np.int64],
        rows: IntArray,
        num_tokens: IntArray,
        tokens: Tensor,
        errors: dict[int, str],
    ) -> None:
        """Copy, edit and sample the rows `index`; fills `tokens` and `errors`."""
        size = EDIT_CHUNKS * rows_per_chunk(scores.scores)
        for start in range(0, len(index), size):
            part = index[start : start + size]
            on_device = self._tensor(part)
            logits = self._scratch_rows(len(part))
            valid = logits[:, : self.num_valid_ids]
            copy_rows(scores.scores, on_device, valid)
            logits[:, self.num_valid_ids :] = -torch.inf
            finite = valid.amax(1).isfinite()
            found: dict[int, str] = {}
            work = Work(logits, rows[part], num_tokens[part], self._token_ids, found)
            for edit in self._edits:
                edit.apply(work)
            of = (work.rows, work.num_tokens)
            drawn = self._choose(BlockedScores(valid), None, *of, NO_TOKEN, is_final=True)
            tokens[on_device] = torch.where(finite, drawn, BAD_LOGITS)
            errors.update({int(part[i]): reason for i, reason in found.items()})

    def _logprobs(
        self, scores: BlockedScores, rows: IntArray, tokens: IntArray
    ) -> list[Logprobs | None] | None:
        num_top = self._table.logprobs[rows]
        asked = np.flatnonzero(num_top != self._table.NO_LOGPROBS)
        if not len(asked):
            return None
        out: list[Logprobs | None] = [None] * len(rows)
        asked = asked[tokens[asked] >= 0]
        index, targets = self._tensor(asked), self._tensor(tokens[asked].astype(np.int64))
        found = logprobs_of(scores, index, targets, num_top[asked].tolist())
        for i, entries in zip(asked.tolist(), found, strict=True):
            out[i] = entries
        return out

    def _scratch_rows(self, num_rows: int) -> Tensor:
        """[num_rows, V] float32, uninitialised; the memory is kept between steps."""
        size = num_rows * self.vocab_size
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size, device=self.device)
        return self._scratch[:size].view(num_rows, self.vocab_size)

    def _tensor(self, array: npt.NDArray[np.int64]) -> Tensor:
        return upload(self.device, array)[0]

    def _read(self, tokens: Tensor) -> HostCopy:
        """The one place from which a step's tokens go to the host."""
        return HostCopy(tokens)
