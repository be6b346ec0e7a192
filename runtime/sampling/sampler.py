"""Sampler: logits of a step's rows in, one token per row out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.sampling.blocks import BlockedScores
from runtime.sampling.draw import draw_truncated, draw_untruncated
from runtime.sampling.rows import RowTable
from runtime.step import IntArray, Logprobs, NewRow

NOT_FINITE = "logits: not finite (NaN or infinity); the model or its weights are broken here"


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What one call sampled, in the order of its rows.

    Attributes:
        token_ids: [S]; -1 where `errors` says why there is none.
        errors: index into S -> why that request must end.
        logprobs: [S], or None where no row of the call asked.
    """

    token_ids: IntArray
    errors: dict[int, str] = field(default_factory=dict)
    logprobs: list[Logprobs | None] | None = None


class Sampler:
    """Samples for the rows of one runner.

    A row's token is a function of its logits, its params, its known tokens and its position: not of the other rows,
    their order, or how the request came there.
    """

    def __init__(
        self,
        vocab_size: int,
        token_ids: npt.NDArray[np.int32],
        device: torch.device | str,
        *,
        num_valid_ids: int | None = None,
    ) -> None:
        """
        Args:
            vocab_size: V, the width of the logits.
            token_ids: [max_num_seqs, max_model_len] known tokens of every row; read, never written.
            num_valid_ids: ids from here up are padding of the model's vocabulary: never sampled, never listed.
        """
        self.vocab_size = vocab_size
        self.num_valid_ids = vocab_size if num_valid_ids is None else num_valid_ids
        self.device = torch.device(device)
        self._token_ids = token_ids
        self._table = RowTable(len(token_ids), self.num_valid_ids)

    def add(self, new: NewRow) -> None:
        """A request enters a row, for the first time or again after a preemption."""
        self._table.set(new)

    def drop(self, row: int) -> None:
        """The row's request has left."""

    def prepare(self, rows: IntArray, num_tokens: IntArray) -> None:
        """Start what can run beside the forward of the step that will sample `rows`."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: IntArray, num_tokens: IntArray) -> SamplerOutput:
        """
        Args:
            logits: [S, V], any float dtype; not changed.
            rows: [S] distinct rows.
            num_tokens: [S] known tokens of each row: the position of the new one.
        """
        if not len(rows):
            return SamplerOutput(np.zeros(0, np.int32))
        scores = BlockedScores(logits[:, : self.num_valid_ids])
        tokens = self._choose(scores, rows, num_tokens)
        out = torch.where(scores.max.isfinite(), tokens, -1).to("cpu", torch.int32).numpy()
        errors = {int(i): NOT_FINITE for i in np.flatnonzero(out < 0)}
        return SamplerOutput(out, errors)

    def _choose(self, scores: BlockedScores, rows: IntArray, num_tokens: IntArray) -> Tensor:
        """[S] int64 tokens; anything for rows without a finite largest score."""
        table = self._table
        greedy = table.is_greedy[rows]
        if greedy.all():
            return scores.argmax()
        truncated = table.is_truncated[rows]
        tokens = scores.argmax() if greedy.any() else scores.max.new_empty(len(rows)).long()
        for chosen, draw in (
            (~greedy & truncated, draw_truncated),
            (~greedy & ~truncated, draw_untruncated),
        ):
            if chosen.any():
                index = torch.from_numpy(np.flatnonzero(chosen)).to(self.device)
                params = table.draw_params(rows[chosen], num_tokens[chosen], self.device)
                tokens[index] = draw(scores, index, params)
        return tokens
