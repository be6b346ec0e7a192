"""Detokenizer: token ids in, text out, as early as it is certain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runtime.text.tokenizer import Tokenizer
from runtime.text.utf8 import ByteRuns, ByteStream, byte_of_fallback_piece, incomplete_tail


class Detokenizer:
    """The text of one request's output, piece by piece.

    The deltas of `push` and `finish`, joined, equal `tokenizer.decode` of all pushed ids, whatever
    the prompt was. One exception: a character that the prompt began and the output completes is
    shown whole. No delta holds a part of a character, and what it holds is never taken back.

    Work and memory per token are bounded: a token is decoded beside the last one that gave text.

    Args:
        tokenizer: whose vocabulary the ids are of.
        prompt_ids: what came before; only an incomplete character at its end matters.
        skip_special_tokens: whether special tokens give no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        kind = _ByteLevelText if tokenizer.is_byte_level else _PieceText
        self._text = kind(tokenizer, prompt_ids)
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()

    def push(self, ids: Iterable[int]) -> str:
        """The new text that is certain after these ids; empty while a character is incomplete."""
        return self._text.push([i for i in ids if i not in self._skipped])

    def finish(self) -> str:
        """What was held: U+FFFD for bytes whose character never came. Nothing may follow."""
        return self._text.finish()


_PROMPT_TAIL = 3
"""Tokens at the prompt's end that can hold the start of an incomplete character."""


class _ByteLevelText:
    """Byte-level vocabularies: a token is bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._bytes_of = tokenizer.token_bytes
        tail = b"".join(map(self._bytes_of, prompt_ids[-_PROMPT_TAIL:]))
        self._stream = ByteStream(incomplete_tail(tail))

    def push(self, ids: list[int]) -> str:
        return self._stream.push(b"".join(map(self._bytes_of, ids)))

    def finish(self) -> str:
        return self._stream.finish()


_ANCHOR = "a"
"""Stands for the text so far: what decoders do at the start of a text, they do to it."""

_LONGEST_CONTEXT = 8


class _PieceText:
    """Other vocabularies: a token's text depends on whether text came before it, and for some on
    the token before it, so each one is decoded behind these."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._runs = ByteRuns(_begun_pieces(tokenizer, prompt_ids))
        self._context: list[str] = []
        self._context_len = 0
        """Characters that the context alone decodes to."""

    def push(self, ids: list[int]) -> str:
        pieces = self._tokenizer.pieces(ids)
        return "".join(self._add(group) for piece in pieces for group in self._runs.push(piece))

    def finish(self) -> str:
        return "".join(map(self._add, self._runs.finish()))

    def _add(self, group: list[str]) -> str:
        decode = self._tokenizer.decode_pieces
        text = decode(self._context + group)[self._context_len :]
        if text:
            self._context = [_ANCHOR, *group]
            self._context_len = len(decode(self._context))
        elif len(self._context) < _LONGEST_CONTEXT:
            # a piece may give nothing and yet matter: a space that is stripped, a word's end
            self._context = self._context + group
        return text


def _begun_pieces(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> list[str]:
    if not tokenizer.has_byte_fallback:
        return []
    pieces: list[str] = []
    for piece in tokenizer.pieces(prompt_ids[-_PROMPT_TAIL:]):
        pieces = [*pieces, piece] if byte_of_fallback_piece(piece) is not None else []
    tail = incomplete_tail(bytes(byte_of_fallback_piece(piece) or 0 for piece in pieces))
    return pieces[len(pieces) - len(tail) :]
