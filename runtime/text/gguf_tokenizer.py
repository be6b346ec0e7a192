"""A tokenizer out of a GGUF file's metadata, by the rules of the format's reference, llama.cpp."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

from runtime.errors import ModelError
from runtime.machine.gguf_reader import read_metadata
from runtime.text.gguf_rules import PreTokenizer, pre_tokenizer
from runtime.text.gguf_specials import added_tokens, special_ids
from runtime.text.tokenizer import TokenizerSettings

log = logging.getLogger(__name__)

_ARRAYS = ("tokens", "scores", "token_type", "merges")
_SPACE = "\u2581"


def gguf_tokenizer(path: Path) -> tuple[Tokenizer, TokenizerSettings]:
    """The tokenizer that the file holds.

    Raises:
        ModelError: a file that is damaged or holds none, or rules that are not supported.
    """
    metadata = read_metadata(path, [f"tokenizer.ggml.{name}" for name in _ARRAYS])
    keys = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in metadata.items()
        if name.startswith("tokenizer.ggml.") and value is not None
    }
    pieces = _pieces(keys)
    kind = keys["model"]
    if kind == "gpt2":
        rule = _rule_of(path, keys)
        backend, adds_bos = _bpe(keys, pieces, rule), rule.adds_bos
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(keys, pieces), True
    else:
        raise ModelError(
            f"tokenizer.ggml.model is {kind!r} ({_UNSUPPORTED.get(kind, 'unknown')}); supported: "
            "gpt2 (byte-level BPE), llama (SentencePiece)"
        )
    name = str(metadata.get("general.name", ""))
    backend.add_tokens(added_tokens(keys, pieces, name))
    ids = special_ids(keys, len(pieces))
    _add_ends(path, backend, keys, pieces, ids, adds_bos)
    return backend, TokenizerSettings(
        special_tokens={f"{name}_token": pieces[i] for name, i in ids.items()},
        chat_template=_chat_template(metadata),
    )


_UNSUPPORTED = {
    "bert": "WordPiece",
    "t5": "Unigram",
    "rwkv": "RWKV's greedy trie",
    "plamo2": "PLaMo-2's table",
    "gemma4": "BPE on raw UTF-8 that takes runs of newlines whole",
    "hybriddna": "BPE with k-mers of DNA",
    "whitespace": "BPE of words between blanks",
    "none": "no tokenizer",
    "no_vocab": "no tokenizer",
}


def _pieces(keys: dict[str, Any]) -> list[str]:
    if "model" not in keys or not keys.get("tokens"):
        raise ModelError("the file holds no tokenizer (tokenizer.ggml.model and .tokens)")
    pieces = [piece or f"[EMPTY_{i}]" for i, piece in enumerate(keys["tokens"])]
    if len(set(pieces)) < len(pieces):
        seen: set[str] = set()
        twice = next(piece for piece in pieces if piece in seen or seen.add(piece))
        raise ModelError(f"the vocabulary holds {twice!r} twice")
    return pieces


def _rule_of(path: Path, keys: dict[str, Any]) -> PreTokenizer:
    name = keys.get("pre", "")
    if not name:
        log.warning(
            "%s names no pre-tokenizer (tokenizer.ggml.pre): the default one is taken, and token "
            "ids may differ from those that the model was trained on; convert the model anew",
            path,
        )
    return pre_tokenizer(name or "default")


def _bpe(keys: dict[str, Any], pieces: list[str], rule: PreTokenizer) -> Tokenizer:
    if "merges" not in keys and keys.get("pre") != "kimi-k2":
        raise ModelError("the key tokenizer.ggml.merges is missing")
    cuts = ((merge, merge.find(" ", 1)) for merge in keys.get("merges", ()))
    # the first of two equal merges counts
    merges = list(dict.fromkeys((merge[:cut], merge[cut + 1 :]) for merge, cut in cuts if cut > 0))
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
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
        backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre.Sequence(steps)
    return backend


def _sentencepiece(keys: dict[str, Any], pieces: list[str]) -> Tokenizer:
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


def _add_ends(
    path: Path,
    backend: Tokenizer,
    keys: dict[str, Any],
    pieces: list[str],
    ids: dict[str, int],
    adds_bos: bool,
) -> None:
    """Has `encode` put BOS before a text and EOS behind it, where the file or its rules say so."""
    wanted = {"bos": keys.get("add_bos_token", adds_bos), "eos": keys.get("add_eos_token", False)}
    for name in (name for name in wanted if wanted[name] and name not in ids):
        log.warning("%s asks for %s but names no such token: none is added", path, name.upper())
    added = {name: pieces[ids[name]] for name in wanted if wanted[name] and name in ids}
    if added:
        before = [added["bos"]] if "bos" in added else []
        after = [added["eos"]] if "eos" in added else []
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(text, ids[name]) for name, text in added.items()],
        )


def _chat_template(metadata: dict[str, Any]) -> str | dict[str, str] | None:
    prefix = "tokenizer.chat_template"
    named = {
        name.removeprefix(f"{prefix}."): text
        for name, text in metadata.items()
        if name.startswith(f"{prefix}.")
    }
    main = metadata.get(prefix) or None
    if not named:
        return main
    return {"default": main, **named} if main else named
