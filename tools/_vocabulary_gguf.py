"""Vocabulary-only GGUF files for trying tokenizers, and strings to try them with."""

import json
import random
import unicodedata
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
    fields = {"model": "gpt2", "tokens": pieces, "token_type": types, "merges": list(merges)}
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
    vocabulary = trained.get_vocab()
    return sorted(vocabulary, key=lambda piece: (len(piece) == 1, vocabulary[piece]))


def _merges_of(trained: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]


CURATED = (
    "",
    " ",
    "  ",
    "\n",
    "Hello world",
    "I'm sure you've seen they'll say it's WE'LL DON'T 'S 'tis '\u017f",
    "1 12 123 1234 12345 123456 1234567 -3.14 1,000,000 0x1F \u0661\u0662\u0663 \u2167 \u00bd4",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u6c49\u5b57"
    "\u3000\u304b\u306a\u30ab\u30ca \ud55c\uad6d\uc5b4 \u3105\u3106 \uff71\uff72",
    "\U0001f525\U0001f468\u200d\U0001f469\u200d\U0001f467 ok \u2764\ufe0f!! \U0001f1e9\U0001f1ea",
    "na\u00efve caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m \u01c5 \u0130stanbul \u1e9e",
    "a  b   c    d\t\te\u00a0f\u3000g\u2003\u2003h  ",
    "x\n\ny\r\nz \n \n  w\n\n\n",
    "def f(x):\n    return x**2  # sq\n\n\tif (a!=b)&&(c==d) {\n\t}\n",
    "HelloWorld camelCase XMLHttpRequest iOS don'tStop",
    "\u0939\u093f\u0928\u094d\u0926\u0940"
    " \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0627\u0644\u0639\u0631\u0628\u064a\u0629\u060c \u05e2\u05d1",
    "\u0437\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439"
    " \u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u10d2\u10d0\u10db",
    "$5 + 3 <= 9 ~ `a` ^ | \u20ac10 \u00a7"
    " \u2026\u2018q\u2019 \u201cQ\u201d \u3001\u3002\uff08\u4e2d\uff09/path//a/",
    "<|im_start|>user\nhi<|im_end|>\n <my tag> a <tool_call>",
    f"{USER_MARK}hi{END_MARK}  {END_MARK}",
    "IMGIMGABCZ <sentinel:12> (a) .Net #tag @me _x_ a.b,c!d?e",
    "a b c d e f  ab cd\x00\x1c\x7f\x85z",
)
_ATOMS = (
    *(
        "the",
        "Hello",
        "world",
        "abc",
        "ABC",
        "iPhone",
        "x",
        "s",
        "t",
        "'",
        "'s",
        "'LL",
        "'re",
        "'x",
    ),
    *("1", "12", "123", "2024", "98765", "\u0663", "\u00b2", "\u2167", " ", " ", " ", "  ", "   "),
    *("\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2003", "\x85", "\x0b", "\x1c", "/"),
    *("!", "?", "...", ",", ".", "(", ")", "{", "}", "[", "\\", "$", "+", "<=", "~", "`", "^", "|"),
    *(
        "#",
        "_",
        "-",
        "\u2014",
        "\u2026",
        "\u201c",
        "\u2018",
        "\u20ac",
        "\u00b5",
        "\u01bb",
        "\u0294",
    ),
    *(
        "\u4e2d",
        "\u6587\u5b57",
        "\u3042",
        "\u30a2",
        "\ud55c",
        "\u3131",
        "\u3105",
        "\uff0c",
        "\u3002",
    ),
    *("\uff01", "\uff1a", "\uff41", "\U00020000", "\U0001f525", "\u2764\ufe0f", "\u200d", "\u0301"),
    *("caf\u00e9", "e\u0301", "\u00c9", "\u0416", "\u03b1", "\u0928\u092e\u0938\u094d", "\u0e01"),
    *("\u0627\u0644", "\u060c", "\u0964", "\u05e9", "\u1ec7", "\uf900", "\ue000", "\uffff"),
    *("<|im_end|>", "<my tag>", "<tool_call>", USER_MARK, END_MARK, "<s>"),
)


def strings(count: int, seed: int = 0) -> list[str]:
    """The curated strings, then random ones of words, blanks, symbols and any character."""
    draw = random.Random(seed)
    found = list(CURATED[:count])
    while len(found) < count:
        any_character = draw.random() < 0.15
        length = draw.randint(1, 14)
        found.append(
            "".join(_any_character(draw) for _ in range(length))
            if any_character
            else "".join(draw.choices(_ATOMS, k=length))
        )
    return found


def _any_character(draw: random.Random) -> str:
    """Of those with a category: tables of newer versions of Unicode agree on them."""
    while True:
        character = chr(draw.randrange(draw.choice((0x80, 0x3000, 0xFFFF, 0x1FFFF))))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            return character
