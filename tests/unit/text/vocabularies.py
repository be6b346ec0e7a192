"""Small vocabularies of every kind that models use, made in memory."""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from runtime.text import Tokenizer, TokenizerSettings
from runtime.text.utf8 import byte_of_char

CHAR_OF_BYTE = {byte: char for char, byte in byte_of_char().items()}
CORPUS = [
    "the quick brown fox jumps over the lazy dog, don't you think so?",
    "    def f(x):\n        return x + 1  # 100 200\n",
    "ďábel žluťoučký kůň 世界 你好 🔥🔥 naïve café",
]


def spelled(data: bytes) -> str:
    return "".join(CHAR_OF_BYTE[b] for b in data)


def byte_level(*pieces: bytes) -> Tokenizer:
    """All 256 bytes as tokens 0..255, then the given byte strings, then `<|end|>`, special."""
    tokens = dict.fromkeys([*(bytes([b]) for b in range(256)), *pieces])
    backend = tokenizers.Tokenizer(
        models.BPE({spelled(data): i for i, data in enumerate(tokens)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(backend, TokenizerSettings(special_tokens={"eos_token": "<|end|>"}))


def ids_of(tokenizer: Tokenizer, *pieces: bytes | str) -> list[int]:
    """Ids of pieces: bytes for byte-level ones, else the vocabulary's own spelling."""
    ids = [tokenizer.token_id(spelled(p) if isinstance(p, bytes) else p) for p in pieces]
    assert None not in ids
    return ids


def sentencepiece_backend() -> tokenizers.Tokenizer:
    """A Unigram with byte fallback, as Llama 2's and Mistral's tokenizers decode."""
    fallback = [(f"<0x{b:02X}>", -9.0) for b in range(256)]
    words = ["▁", "▁the", "▁fox", "the", "fox", "a", "b", ".", "世", "▁▁", "é"]
    vocab = [("<unk>", -9.0), ("<s>", -9.0), ("</s>", -9.0), *fallback, *((w, -1.0) for w in words)]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return backend


def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_backend(), TokenizerSettings())


def word_level(decoder: decoders.Decoder | None) -> Tokenizer:
    """A few words and their continuations, under any decoder."""
    words = ["a", "##b", ".", "n't", "▁a", "▁▁b", "▁", "c</w>", "d", "</w>", "世", " x", ""]
    backend = tokenizers.Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="a")
    )
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend, TokenizerSettings())


def byte_level_backend() -> tokenizers.Tokenizer:
    """A trained byte-level BPE that adds `<s>` at the start, as Llama 3's tokenizer does."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=sorted(CHAR_OF_BYTE.values()),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool>", special=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return backend


def llama_backend() -> tokenizers.Tokenizer:
    """A BPE with byte fallback, which transformers rebuilds by the rules of its LlamaTokenizer."""
    trained = tokenizers.Tokenizer(models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=200, show_progress=False)
    trained.train_from_iterator([text.replace(" ", "▁") for text in CORPUS[:2]], trainer)
    learned = json.loads(trained.to_str())["model"]
    specials = ["<unk>", "<s>", "</s>"]
    tokens = [*specials, *(f"<0x{b:02X}>" for b in range(256)), *learned["vocab"]]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            [tuple(merge) for merge in learned["merges"]],
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    backend.normalizer = sentencepiece_backend().normalizer
    backend.decoder = sentencepiece_backend().decoder
    return backend


def save_folder(folder: Path, backend: tokenizers.Tokenizer, **config: object) -> Path:
    """A Hugging Face folder with this tokenizer; `config` goes to tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
