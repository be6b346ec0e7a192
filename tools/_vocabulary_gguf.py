"""Vocabulary-only GGUF files for trying tokenizers."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
USER_MARK, END_MARK = "<\uff5cUser\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
SPECIALS = {
    "<s>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    USER_MARK: CONTROL,
    END_MARK: CONTROL,
    "<my tag>": USER_DEFINED,
    "<tool_call>": USER_DEFINED,
}
SPACE = "\u2581"


def write_vocabulary(
    path: Path,
    words: Iterable[str] = (),
    merges: Sequence[str] = (),
    specials: dict[str, int] | None = None,
    **keys: Any,
) -> Path:
    """A byte-level file: single bytes, the words (in GPT-2's spelling), then the special tokens.

    Args:
        path: of the file.
        words: more pieces.
        merges: such as "a b"; what they make is a word too.
        specials: text to type.
        keys: metadata below tokenizer.ggml, such as pre="smollm"; None leaves a default out.
    """
    specials = SPECIALS if specials is None else specials
    made = [left + right for left, right in (merge.split(" ") for merge in merges)]
    pieces = list(dict.fromkeys([*BYTES, *words, *made, *specials]))
    types = [specials.get(piece, NORMAL) for piece in pieces]
    merges = list(merges) or ["-"]  # an array cannot be empty; this one merges nothing
    fields = {"model": "gpt2", "tokens": pieces, "token_type": types, "merges": merges}
    ids = {"bos_token_id": pieces.index("<s>")} if "<s>" in specials else {}
    return write_keys(path, {**fields, **ids, **keys})


def write_sentencepiece(path: Path, pieces: Sequence[str], **keys: Any) -> Path:
    """A SentencePiece file: unknown, BOS, EOS, the bytes, then the pieces, best first."""
    start = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    specials = {text: kind for text, kind in SPECIALS.items() if text != "<s>"}
    pieces = [piece for piece in pieces if piece not in {*start, *specials}]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * len(start) + [-float(i) for i in range(len(pieces))]
    fields = {
        "model": "llama",
        "tokens": [*start, *pieces, *specials],
        "token_type": [*types, *specials.values()],
        "scores": [*scores, *[0.0] * len(specials)],
    }
    return write_keys(path, {**fields, **keys})


def write_keys(path: Path, keys: dict[str, Any]) -> Path:
    """A file without tensors that holds these keys below tokenizer.ggml."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in keys.items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        else:
            writer.add_string(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def train_bytes(texts: Sequence[str], num_merges: int) -> list[str]:
    """Merges over whole texts: they cross every place where a rule may cut, so a cut shows."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges,
        initial_alphabet=list(BYTES),
        max_token_length=12,
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    return [" ".join(merge) for merge in _merges_of(trained)]


def train_pieces(texts: Sequence[str], num_pieces: int) -> list[str]:
    """Pieces for `write_sentencepiece`; rare characters have none, and fall back to bytes."""
    trained = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_pieces, limit_alphabet=150, max_token_length=12, show_progress=False
    )
    trained.train_from_iterator([text.replace(" ", SPACE) for text in texts], trainer)
    # llama.cpp ends a piece at its first NUL
    vocabulary = {piece: i for piece, i in trained.get_vocab().items() if "\0" not in piece}
    return sorted(vocabulary, key=lambda piece: (len(piece) == 1, vocabulary[piece]))


def _merges_of(trained: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]
