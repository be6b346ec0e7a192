"""Edits of a row's logits before the draw: hard masks, biases and users' processors.

Every edit keeps what it needs of its rows and changes a whole float32 work matrix in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.params import LogitsProcessor
from runtime.data.step import IntArray, NewRow
from runtime.errors import RequestError
from runtime.ops.transfer import upload

IdArray = npt.NDArray[np.int64]


class TokenizerLike(Protocol):
    """What sampling needs of a tokenizer."""

    backend: Any
    """a `tokenizers.Tokenizer`"""

    @property
    def num_ids(self) -> int: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class Work(NamedTuple):
    """The rows that an edit may change. An edit touches those of `rows` that it holds, by index.

    Attributes:
        logits: [n, V] float32, contiguous, ours to change.
        rows: [n]
        num_tokens: [n] known tokens of each row.
        token_ids: [max_num_seqs, max_model_len] the known tokens.
        errors: index into n -> why that request must end; an edit adds to it.
    """

    logits: Tensor
    rows: IntArray
    num_tokens: IntArray
    token_ids: npt.NDArray[np.int32]
    errors: dict[int, str]

    def places(self, index: Sequence[int], ids: Iterable[IdArray]) -> Tensor:
        """Flat places of `ids[j]` in the rows `index[j]`, all in one array."""
        width = self.logits.shape[1]
        parts = [i * width + a for i, a in zip(index, ids, strict=True)]
        return self.upload(np.concatenate(parts))

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        """The array beside the logits."""
        return upload(self.logits.device, array)[0]


class Edit(Protocol):
    """One step of the logits' way; see `Sampler` for the order."""

    def add(self, new: NewRow) -> bool:
        """Take up a row; whether this edit has anything to do for it."""

    def drop(self, row: int) -> None:
        """Forget a row; nothing if it is not held."""

    def apply(self, work: Work) -> None: ...


class AllowedIds:
    """`allowed_token_ids`: nothing else may be sampled."""

    def __init__(self) -> None:
        self._rows: dict[int, IdArray] = {}

    def add(self, new: NewRow) -> bool:
        if new.params.allowed_token_ids is not None:
            self._rows[new.row] = np.unique(np.array(new.params.allowed_token_ids, np.int64))
        return new.row in self._rows

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def apply(self, work: Work) -> None:
        if not (held := held_rows(self._rows, work.rows)):
            return
        places = work.places(held, [self._rows[int(work.rows[i])] for i in held])
        flat = work.logits.view(-1)
        kept = flat[places]
        work.logits[work.upload(np.array(held, np.int64))] = -torch.inf
        flat[places] = kept


class BadWords:
    """`bad_words`: the last token of a word is masked where the output ends with those before."""

    def __init__(self, tokenizer: TokenizerLike | None) -> None:
        self._tokenizer = tokenizer
        self._rows: dict[int, tuple[int, list[list[int]]]] = {}

    def add(self, new: NewRow) -> bool:
        if new.params.bad_words:
            if self._tokenizer is None:
                raise RequestError("bad_words", "needs a tokenizer, and this runner has none")
            words = bad_word_ids(new.params.bad_words, self._tokenizer)
            self._rows[new.row] = (new.num_prompt_tokens, words)
        return new.row in self._rows

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def apply(self, work: Work) -> None:
        if not (held := held_rows(self._rows, work.rows)):
            return
        ids = [self._banned(work, i) for i in held]
        work.logits.view(-1)[work.places(held, ids)] = -torch.inf

    def _banned(self, work: Work, i: int) -> IdArray:
        row, end = int(work.rows[i]), int(work.num_tokens[i])
        num_prompt, words = self._rows[row]
        longest = max(map(len, words)) - 1
        tail = work.token_ids[row, max(num_prompt, end - longest) : end].tolist()
        last = [w[-1] for w in words if len(w) == 1 or tail[1 - len(w) :] == w[:-1]]
        return np.array(last, np.int64)


def bad_word_ids(words: Iterable[str], tokenizer: TokenizerLike) -> list[list[int]]:
    """The spellings of each word in tokens, at the start of a text and after a space; a special
    token's text is that token, also where texts may not spell it out."""
    found: dict[tuple[int, ...], None] = {}
    special = {t.content: i for i, t in tokenizer.backend.get_added_tokens_decoder().items()}
    for word in words:
        if word in special:
            found[special[word],] = None
        for prefix in ("", " "):
            ids = tokenizer.encode(prefix + word.lstrip(), add_special_tokens=False)
            found.update({tuple(ids): None} if ids else {})
    return [list(ids) for ids in found]


class MinTokens:
    """`min_tokens`: no EOS and no stop id until the output has so many tokens.

    The EOS of structured output is not its business: a finished grammar leaves nothing else.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, IdArray]] = {}

    def add(self, new: NewRow) -> bool:
        eos = new.eos_token_ids
        if new.params.structured_output is None:
            ids = sorted({*eos, *new.params.stop_token_ids})
        else:
            ids = sorted({*new.params.stop_token_ids}.difference(eos))
        if new.params.min_tokens > 0 and ids:
            until = new.num_prompt_tokens + new.params.min_tokens
            self._rows[new.row] = (until, np.array(ids, np.int64))
        return new.row in self._rows

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def apply(self, work: Work) -> None:
        held = held_rows(self._rows, work.rows)
        held = [i for i in held if work.num_tokens[i] < self._rows[int(work.rows[i])][0]]
        if held:
            places = work.places(held, [self._rows[int(work.rows[i])][1] for i in held])
            work.logits.view(-1)[places] = -torch.inf


class LogitBias:
    """`logit_bias`: numbers added to the logits of chosen ids."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[IdArray, npt.NDArray[np.float32]]] = {}

    def add(self, new: NewRow) -> bool:
        if new.params.logit_bias:
            ids = np.array(list(new.params.logit_bias), np.int64)
            self._rows[new.row] = (ids, np.array(list(new.params.logit_bias.values()), np.float32))
        return new.row in self._rows

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def apply(self, work: Work) -> None:
        if not (held := held_rows(self._rows, work.rows)):
            return
        chosen = [self._rows[int(work.rows[i])] for i in held]
        values = work.upload(np.concatenate([v for _, v in chosen]))
        work.logits.view(-1)[work.places(held, [ids for ids, _ in chosen])] += values


class Processors:
    """`logits_processors`: users' functions. A token that was masked before them stays masked."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[LogitsProcessor, ...]] = {}

    def add(self, new: NewRow) -> bool:
        if new.params.logits_processors:
            self._rows[new.row] = new.params.logits_processors
        return new.row in self._rows

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def apply(self, work: Work) -> None:
        for i in held_rows(self._rows, work.rows):
            row = int(work.rows[i])
            known = work.token_ids[row, : work.num_tokens[i]].tolist()
            masked = work.logits[i] == -torch.inf
            for processor in self._rows[row]:
                try:
                    work.logits[i] = _checked(processor(known, work.logits[i].clone()), work.logits)
                except Exception as error:  # it is the user's code: any failure ends this row alone
                    name = getattr(processor, "__name__", type(processor).__name__)
                    reason = f"{type(error).__name__}: {error}"
                    work.errors[i] = f"logits_processors: {name} failed with {reason}"
                    break
            work.logits[i].masked_fill_(masked, -torch.inf)


def _checked(result: Any, logits: Tensor) -> Tensor:
    width = logits.shape[1]
    if not isinstance(result, Tensor) or result.shape != (width,):
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(f"must return a tensor of shape ({width},), got {got}")
    if bool((result.isnan() | (result == torch.inf)).any()):
        raise ValueError("returned logits that are NaN or +infinity")
    return result.to(logits)


def held_rows(held: dict[int, Any], rows: IntArray) -> list[int]:
    """Indices into `rows` of the rows that are in `held`."""
    if not held:
        return []
    return [i for i, row in enumerate(rows.tolist()) if row in held]
