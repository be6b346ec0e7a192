"""A tokenizer out of a GGUF file's metadata, by the rules of the format's reference, llama.cpp."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from runtime.errors import ModelError
from runtime.machine.gguf_reader import read_metadata
from runtime.text.gguf_models import byte_level, sentencepiece
from runtime.text.gguf_rules import PreTokenizer, pre_tokenizer
from runtime.text.gguf_specials import added_tokens, special_ids
from runtime.text.tokenizer import TokenizerSettings

log = logging.getLogger(__name__)

_ARRAYS = ("tokens", "scores", "token_type", "merges")


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
        backend, adds_bos = byte_level(keys, pieces, rule), rule.adds_bos
    elif kind == "llama":
        backend, adds_bos = sentencepiece(keys, pieces), True
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
