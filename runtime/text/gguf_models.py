"""The two kinds of vocabularies of GGUF files that are supported, for the tokenizers library."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre

from runtime.errors import ModelError
from runtime.text.gguf_rules import PreTokenizer
from runtime.text.utf8 import byte_of_char

_SPACE = "\u2581"


def byte_level(keys: dict[str, Any], pieces: list[str], rule: PreTokenizer) -> Tokenizer:
    """Merges by rank within the words that the rule cuts."""
    if "merges" not in keys and keys.get("pre") != "kimi-k2":
        raise ModelError("the key tokenizer.ggml.merges is missing")
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = _merges(keys.get("merges", ()), vocabulary)
    steps: list[Any] = [pre.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    backend = Tokenizer(
        models.BPE(vocabulary, merges, ignore_merges=rule.ignore_merges, byte_fallback=rule.is_raw)
    )
    if rule.is_raw:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
        backend.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=False))
        missing = "".join(sorted(byte_of_char().keys() - vocabulary.keys()))
        if missing:  # dropped, and what stands beside it does not merge
            steps.append(pre.Split(Regex(f"[{re.escape(missing)}]"), "removed"))
        backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre.Sequence(steps)
    return backend


def _merges(lines: Iterable[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs, best first; those of pieces that there are not can never be met."""
    cuts = ((line, line.find(" ", 1)) for line in lines)
    # of equal merges the first counts
    pairs = dict.fromkeys((line[:cut], line[cut + 1 :]) for line, cut in cuts if cut > 0)
    found = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    for left, right in found:
        if left + right not in vocabulary:
            raise ModelError(f"a merge makes {left + right!r}, which the vocabulary lacks")
    return found


def sentencepiece(keys: dict[str, Any], pieces: list[str]) -> Tokenizer:
    """Merges by score over the whole text; what has no piece falls back to its bytes."""
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    unknown = keys.get("unknown_token_id", 0)
    backend = Tokenizer(
        models.BPE(
            vocabulary,
            _merges_by_score(pieces, keys.get("scores"), vocabulary),
            unk_token=pieces[unknown] if unknown < len(pieces) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = keys.get("add_space_prefix", True)
    escape = normalizers.Replace(" ", _SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), escape]) if has_prefix else escape
    )
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * has_prefix)
    return backend


def _merges_by_score(
    pieces: list[str], scores: list[float] | None, vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Every two pieces that make a third, in the order of its score."""
    found = []
    for piece, score in zip(pieces, scores or [0.0] * len(pieces), strict=False):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-score, left, right))
    found.sort(key=lambda merge: merge[0])
    return [(left, right) for _, left, right in found]
