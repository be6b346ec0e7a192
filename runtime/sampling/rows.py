"""The numbers of each request row, in arrays that a step takes its rows from."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from runtime.data.params import SamplingParams
from runtime.data.step import IntArray, NewRow
from runtime.ops.transfer import upload
from runtime.sampling.draw import DrawParams
from runtime.sampling.noise import seed_of_text, stream_of_seed, uniform

MAX_TEMPERATURE = 1e30
"""Hotter is the same in float32, save that infinity over infinity is not a number."""


class RowTable:
    """Numbers of the rows [max_num_seqs]; a row's values hold from `set` until the next `set`."""

    NO_LOGPROBS = -2

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.is_greedy = np.zeros(num_rows, np.bool_)
        self.is_truncated = np.zeros(num_rows, np.bool_)
        self.temperature = np.ones(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int64)
        self.top_p = np.ones(num_rows, np.float64)
        self.max_gap = np.full(num_rows, np.inf, np.float32)
        self.stream = np.zeros(num_rows, np.uint64)
        self.logprobs = np.full(num_rows, self.NO_LOGPROBS, np.int64)
        self.prompt_logprobs = np.full(num_rows, self.NO_LOGPROBS, np.int64)
        self.is_edited = np.zeros(num_rows, np.bool_)
        """Whether the row's logits are changed before the temperature, at every position."""
        self.min_num_tokens = np.zeros(num_rows, np.int64)
        """Known tokens under which `min_tokens` changes them."""

    def set(self, new: NewRow) -> None:
        """Take a request's params; without a seed its id gives one, which a preemption keeps."""
        p, row = new.params, new.row
        top_k = effective_top_k(p, self.vocab_size)
        self.is_greedy[row] = p.is_greedy or top_k == 1
        self.is_truncated[row] = top_k < self.vocab_size or p.top_p < 1 or p.min_p > 0
        self.temperature[row] = min(p.temperature, MAX_TEMPERATURE)
        self.top_k[row] = top_k
        self.top_p[row] = p.top_p
        self.max_gap[row] = -math.log(p.min_p) if p.min_p > 0 else np.inf
        seed = seed_of_text(new.request_id) if p.seed is None else p.seed
        self.stream[row] = stream_of_seed(seed)
        for array, asked in (
            (self.logprobs, p.logprobs),
            (self.prompt_logprobs, p.prompt_logprobs),
        ):
            array[row] = self.NO_LOGPROBS if asked is None else asked
        self.is_edited[row] = False
        self.min_num_tokens[row] = new.num_prompt_tokens + p.min_tokens if p.min_tokens else 0

    def draw_params(
        self, rows: IntArray, positions: npt.NDArray[np.integer], device: torch.device
    ) -> DrawParams:
        """Of `rows` [n], whose new tokens will stand at `positions` [n]."""
        top_k, top_p, max_gap = self.top_k[rows], self.top_p[rows], self.max_gap[rows]
        noise = uniform(self.stream[rows], positions)
        temperature, k, top, gap, drawn = upload(
            device, self.temperature[rows], top_k, top_p, max_gap, noise
        )
        has_max_gap = bool((max_gap < np.inf).any())
        has_nucleus = bool(((top_k >= self.vocab_size) & (top_p < 1)).any())
        return DrawParams(temperature, k, top, gap, drawn, has_max_gap, has_nucleus)


def effective_top_k(params: SamplingParams, vocab_size: int) -> int:
    """In [1, vocab_size]: 0 and -1 are off, more than the vocabulary is clamped."""
    return min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size
