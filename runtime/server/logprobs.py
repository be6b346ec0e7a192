"""Log-probabilities as OpenAI writes them: one form for completions, one for chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.data.step import Logprobs, TokenLogprob
from runtime.text import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


class TokenTexts:
    """The texts of single tokens; of a model without a tokenizer, their ids."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def bytes_of(self, token_id: int) -> bytes:
        if self._tokenizer is None:
            return f"token_id:{token_id}".encode()
        return self._tokenizer.token_bytes(token_id)

    def text_of(self, token_id: int) -> str:
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def joined(self, token_ids: Sequence[int]) -> str:
        """The text of a row of tokens, special ones spelt out."""
        if self._tokenizer is None:
            return " ".join(map(self.text_of, token_ids))
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def chat_logprobs(positions: Sequence[Logprobs], num_top: int, texts: TokenTexts) -> dict[str, Any]:
    """`logprobs` of a chat's choice: what each position holds, the most likely first."""

    def entry(found: TokenLogprob) -> dict[str, Any]:
        data = texts.bytes_of(found.token_id)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": _finite(found.logprob),
            "bytes": list(data),
        }

    content = []
    for entries in positions:
        top = [entry(found) for found in _top(entries, num_top)]
        content.append({**entry(entries[0]), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    positions: Sequence[Logprobs | None],
    num_top: int,
    texts: TokenTexts,
    *,
    first_id: int | None = None,
    offset: int = 0,
) -> dict[str, Any]:
    """`logprobs` of a completion's choice.

    Args:
        positions: None where nothing came before: the first token of a prompt, which is `first_id`.
        offset: characters of the text before the first of them.
    """
    out: dict[str, list[Any]] = {
        name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    for entries in positions:
        token_id = entries[0].token_id if entries else first_id
        text = "" if token_id is None else texts.text_of(token_id)
        out["tokens"].append(text)
        out["token_logprobs"].append(_finite(entries[0].logprob) if entries else None)
        out["top_logprobs"].append(_by_text(entries, num_top, texts) if entries else None)
        out["text_offset"].append(offset)
        offset += len(text)
    return dict(out)


def _by_text(entries: Logprobs, num_top: int, texts: TokenTexts) -> dict[str, float]:
    """The most likely tokens, and the position's own; of equal texts the likeliest."""
    found: dict[str, float] = {}
    for entry in [*_top(entries, num_top), entries[0]]:
        found.setdefault(texts.text_of(entry.token_id), _finite(entry.logprob))
    return found


def _top(entries: Logprobs, num_top: int) -> list[TokenLogprob]:
    return sorted((e for e in entries if e.rank <= num_top), key=lambda e: e.rank)


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST else LEAST
