"""Tokenizer: text to token ids and back, and chats to token ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runtime.errors import ModelError, RequestError
from runtime.text.chat import ChatTemplate
from runtime.text.utf8 import ByteRuns, byte_of_fallback_piece, bytes_of_piece

if TYPE_CHECKING:
    import tokenizers

_LONG_TEXT = 2000
"""Characters from which other threads must not wait: `encode` holds the interpreter all the while,
`encode_batch` lets go of it."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What a tokenizer knows beside its vocabulary; plain JSON."""

    special_tokens: dict[str, str] = field(default_factory=dict)
    """Name to text, such as {"bos_token": "<s>"}; chat templates see them."""

    chat_template: str | dict[str, str] | None = None
    """One template, or several by name (`default`, `tool_use`)."""

    split_special_tokens: bool = False
    """Whether special tokens inside a text are read as plain text."""


class Tokenizer:
    """A vocabulary with its rules, equal to transformers' AutoTokenizer in what it gives.

    One difference: byte-fallback pieces that are no UTF-8 (output cut within a character) do not
    spoil the whole characters beside them, since a stream has shown those already. Spaces are
    never cleaned up.

    Raises:
        ModelError: rules of decoding that text cannot be streamed with.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self.backend = backend
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = settings.split_special_tokens
        added = backend.get_added_tokens_decoder()
        special = {token.content for token in added.values() if token.special}
        self.special_ids = frozenset(i for i, token in added.items() if token.content in special)
        self.special_tokens = dict(settings.special_tokens)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        """Tokens that have a piece; a model's own vocabulary may be padded beyond it."""
        self.is_byte_level, self.has_byte_fallback = _examine_decoder(backend)
        self._chat = ChatTemplate(settings.chat_template, settings.special_tokens)
        self._bytes: dict[int, bytes] = {}

    @property
    def num_ids(self) -> int:
        """One above the largest id that has a piece; a vocabulary may have holes."""
        if self.piece(self.vocab_size - 1) is not None and self.piece(self.vocab_size) is None:
            return self.vocab_size
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def bos_token_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._special_id("eos_token")

    @property
    def has_chat_template(self) -> bool:
        return self._chat.is_given

    @property
    def tool_template(self) -> str | None:
        """The source of the chat template that is given tools; None without one."""
        return self._chat.source_for_tools

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens spelt out in it become their ids.

        Raises:
            RequestError: not a text, or one that is no valid Unicode.
        """
        if not isinstance(text, str):
            raise RequestError("prompt", f"must be text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "prompt", f"holds a lone surrogate at character {error.start}; give valid Unicode"
            ) from None
        if len(text) < _LONG_TEXT:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return self.backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids without a piece give nothing."""
        if not self.has_byte_fallback:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        runs, pieces = ByteRuns(), []
        for piece in self.pieces(ids, skip_special_tokens):
            pieces += [p for group in runs.push(piece) for p in group]
        pieces += [p for group in runs.finish() for p in group]
        return self.decode_pieces(pieces)

    def decode_pieces(self, pieces: list[str]) -> str:
        """The text of pieces, by the vocabulary's own rules."""
        decoder = self.backend.decoder
        return " ".join(pieces) if decoder is None else decoder.decode(pieces)

    def pieces(self, ids: Iterable[int], skip_special_tokens: bool = False) -> list[str]:
        """The vocabulary's spelling of each token, without those that have none or are skipped."""
        skipped = self.special_ids if skip_special_tokens else ()
        found = (self.piece(i) for i in ids if i not in skipped)
        return [piece for piece in found if piece is not None]

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's spelling of a token; None for an id outside it."""
        return self.backend.id_to_token(token_id) if token_id >= 0 else None

    def token_id(self, piece: str) -> int | None:
        """The id of a piece; None when the vocabulary lacks it."""
        return self.backend.token_to_id(piece)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, maybe part of a character; where they depend on the tokens before
        it, those of the token alone."""
        if token_id not in self._bytes:
            piece = self.piece(token_id)
            self._bytes[token_id] = b"" if piece is None else self._bytes_of(piece)
        return self._bytes[token_id]

    def _bytes_of(self, piece: str) -> bytes:
        if self.is_byte_level:
            return bytes_of_piece(piece)
        byte = byte_of_fallback_piece(piece) if self.has_byte_fallback else None
        return self.decode_pieces([piece]).encode() if byte is None else bytes([byte])

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text that the chat template makes of messages, special tokens written out.

        Encode it with `add_special_tokens=False`: the template has written BOS where the model
        wants one.

        Args:
            messages: mappings with `role` and `content` (text, or what the template takes).
            tools: JSON schemas of functions, or Python functions with a docstring.
            add_generation_prompt: whether to open the assistant's turn.
            **variables: given to the template; `documents`, `enable_thinking` and their like.

        Raises:
            RequestError: no template, malformed messages, or a template that refuses them.
        """
        return self._chat.render(messages, tools, add_generation_prompt, variables)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a chat; see `render_chat`."""
        text = self.render_chat(messages, tools, add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.token_id(text)


_LOCAL_DECODERS = (
    "Replace",
    "ByteFallback",
    "Fuse",
    "Strip",
    "Metaspace",
    "WordPiece",
    "BPEDecoder",
)
"""With these a token's text depends on the tokens before it only, so it can be streamed."""


def _examine_decoder(backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """Whether tokens are byte-level, and whether pieces such as `<0xE4>` are bytes."""
    decoder = backend.decoder
    rules: Any = {"type": "Sequence", "decoders": []}
    if decoder is not None:
        rules = json.loads(decoder.__getstate__())
    steps = rules["decoders"] if rules["type"] == "Sequence" else [rules]
    kinds = [step["type"] for step in steps if step["type"] != "Fuse"]
    if kinds == ["ByteLevel"]:
        return True, False
    others = [kind for kind in kinds if kind not in _LOCAL_DECODERS]
    trims_end = any(step["type"] == "Strip" and step["stop"] for step in steps)
    if others or trims_end:
        raise ModelError(
            f"tokenizer: the decoder {', '.join(others) or 'Strip at the end'} cannot be streamed; "
            f"supported: ByteLevel alone, or any of {', '.join(_LOCAL_DECODERS)}"
        )
    return False, "ByteFallback" in kinds
