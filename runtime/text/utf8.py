"""Bytes that tokens carry, put together to characters: the two spellings that vocabularies use."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import cache

REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_START = 3
"""Most bytes of an incomplete UTF-8 character."""


@cache
def byte_of_char() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones stand for themselves, the others for U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (b for b in range(256) if b not in printable)
    spelling = {chr(256 + n): b for n, b in enumerate(others)}
    return spelling | {chr(b): b for b in printable}


def bytes_of_piece(piece: str) -> bytes:
    """The bytes of a byte-level token; an added token outside the spelling is its own text."""
    spelling = byte_of_char()
    try:
        return bytes(spelling[char] for char in piece)
    except KeyError:
        return piece.encode()


def byte_of_fallback_piece(piece: str) -> int | None:
    """0xE4 for the piece `<0xE4>`, None for any other piece."""
    match = _BYTE_PIECE.fullmatch(piece)
    return int(match[1], 16) if match else None


def incomplete_tail(data: bytes) -> bytes:
    """The start of a character that `data` ends in, at most 3 bytes; empty when it ends whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_LONGEST_START:])
    return decoder.getstate()[0]


class ByteStream:
    """Bytes in, text out. What is not UTF-8 becomes U+FFFD, as soon as no later byte can mend it.

    Args:
        begun: the incomplete character that came before; it shows only if new bytes continue it.
    """

    def __init__(self, begun: bytes = b"") -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = begun

    def push(self, data: bytes) -> str:
        if self._begun and data:
            if _can_continue(self._begun, data):
                data = self._begun + data
            self._begun = b""
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteRuns:
    """Sorts pieces into groups that can be decoded: a piece, or the byte pieces of characters.

    Byte pieces such as `<0xE4>` are held until their character is whole. Those that cannot become
    one turn into U+FFFD, one for each byte; whole characters beside them are kept.

    Args:
        begun: byte pieces of an incomplete character that came before; they show only if new ones
            continue it.
    """

    def __init__(self, begun: Sequence[str] = ()) -> None:
        self._begun = list(begun)
        self._held: list[str] = []

    def push(self, piece: str) -> list[list[str]]:
        byte = byte_of_fallback_piece(piece)
        begun, self._begun = self._begun, []
        if byte is None:
            return [*self.finish(), [piece]]
        if begun and _can_continue(_joined(begun), bytes([byte])):
            self._held = begun
        self._held.append(piece)
        return self._settle(final=False)

    def finish(self) -> list[list[str]]:
        return self._settle(final=True)

    def _settle(self, final: bool) -> list[list[str]]:
        groups: list[list[str]] = []
        while self._held:
            try:
                _joined(self._held).decode()
            except UnicodeDecodeError as error:
                if error.start:
                    groups.append(self._take(error.start))
                elif _ends_early(error) and not final:
                    break
                else:
                    groups += [[REPLACEMENT] for _ in self._take(error.end)]
            else:
                groups.append(self._take(len(self._held)))
        return groups

    def _take(self, count: int) -> list[str]:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _joined(byte_pieces: Sequence[str]) -> bytes:
    return bytes.fromhex("".join(piece[3:5] for piece in byte_pieces))


def _ends_early(error: UnicodeDecodeError) -> bool:
    return error.reason == "unexpected end of data"


def _can_continue(begun: bytes, data: bytes) -> bool:
    try:
        (begun + data[:1]).decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and _ends_early(error)
    return True
