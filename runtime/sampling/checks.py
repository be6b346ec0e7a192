"""What only the model's vocabulary can tell of a request's params, and the seeds of its samples."""

from __future__ import annotations

import secrets

import numpy as np

from runtime.data.params import SamplingParams
from runtime.errors import RequestError
from runtime.sampling.edits import TokenizerLike, bad_word_ids
from runtime.sampling.noise import splitmix64
from runtime.sampling.structured import Grammars


def check_params(
    params: SamplingParams,
    vocab_size: int,
    tokenizer: TokenizerLike | None = None,
    *,
    eos_token_ids: tuple[int, ...] = (),
    grammars: Grammars | None = None,
    max_logprobs: int | None = None,
) -> None:
    """Refuse, before the request is queued, what the sampler could not do later.

    Args:
        vocab_size: ids from here up are unknown.
        grammars: what compiles structured output; kept by the caller, since it is costly to make.
        max_logprobs: the most entries per token that may be asked for; None is the vocabulary.

    Raises:
        RequestError: naming the field.
    """
    check_ids(params, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        _check_logprobs(name, getattr(params, name), vocab_size, max_logprobs)
    if params.stop and tokenizer is None:
        raise RequestError("stop", "needs a tokenizer, and this model has none")
    _check_ends(params, eos_token_ids)
    _check_bad_words(params, vocab_size, tokenizer)
    if params.structured_output is not None:
        if grammars is None and tokenizer is not None:
            grammars = Grammars(tokenizer, vocab_size, eos_token_ids)
        if grammars is None:
            raise RequestError("structured_output", "needs a tokenizer, and this model has none")
        grammars.check(params.structured_output)


def check_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary."""
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        for token_id in getattr(params, name) or ():
            if token_id >= vocab_size:
                raise RequestError(
                    name, f"token id {token_id} is outside the vocabulary [0, {vocab_size})"
                )


def _check_logprobs(name: str, asked: int | None, vocab_size: int, limit: int | None) -> None:
    number = vocab_size if asked == -1 else asked or 0
    most = vocab_size if limit is None else min(limit, vocab_size)
    if number > most:
        raise RequestError(name, f"must be at most {most}, got {asked}")


def _check_ends(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> None:
    ends = {*eos_token_ids, *params.stop_token_ids}
    allowed = params.allowed_token_ids
    if params.min_tokens > 0 and allowed is not None and ends.issuperset(allowed):
        raise RequestError(
            "min_tokens", "must be 0 when allowed_token_ids holds only EOS and stop_token_ids"
        )


def _check_bad_words(
    params: SamplingParams, vocab_size: int, tokenizer: TokenizerLike | None
) -> None:
    if not params.bad_words:
        return
    if tokenizer is None:
        raise RequestError("bad_words", "needs a tokenizer, and this model has none")
    for word in params.bad_words:
        spellings = bad_word_ids([word], tokenizer)
        if not spellings or max(map(max, spellings)) >= vocab_size:
            raise RequestError("bad_words", f"{word!r} cannot be written in this vocabulary")


def with_seed(params: SamplingParams) -> list[SamplingParams]:
    """One params per sample, `n` in all, each with n = 1 and a seed of its own.

    The first sample keeps the given seed, the others get seeds derived from it; without one, it is
    drawn from the system. The sampler's draws then depend on nothing but seed and position.
    """
    first = secrets.randbits(63) if params.seed is None else params.seed
    return [params.updated(n=1, seed=child_seed(first, index)) for index in range(params.n)]


def child_seed(seed: int, index: int) -> int:
    """The seed of sample `index`; `seed` itself for the first."""
    if index == 0:
        return seed
    mixed = splitmix64(np.array([seed], np.uint64), np.array([index], np.uint64))
    return int(mixed[0]) >> 1
