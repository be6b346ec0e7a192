"""The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, by the format's reference.

They are llama.cpp's (src/llama-vocab.cpp, src/unicode.cpp), where they differ from the models' own
too: `youtu` and `tiny_aya` do not part words at capitals. Each pattern cuts the pieces that the one
before it left, at its matches; what lies between matches is a piece too.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from runtime.errors import ModelError
from runtime.text import gguf_patterns as p


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut into the words that merges stay inside of."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """Whether a word that is a token is taken whole, reachable by merges or not."""

    adds_bos: bool = False
    """Whether BOS comes first where the file does not say."""

    is_raw: bool = False
    """Whether pieces are spelt in UTF-8 with U+2581 for the space, not in GPT-2's bytes."""


_LLAMA3 = PreTokenizer((p.words(p.THREE),), ignore_merges=True, adds_bos=True)
_GPT_2 = PreTokenizer((p.GPT2,))
_STARCODER = PreTokenizer((p.ONE, p.GPT2))
_QWEN2 = PreTokenizer((p.words(p.ONE),))
_PLAIN_LLAMA3 = replace(_LLAMA3, ignore_merges=False, adds_bos=False)
_DEEPSEEK3 = PreTokenizer(
    (p.THREE, p.CJK, p.any_of(p.PUNCTUATED, r" ?[\p{P}\p{S}]+[\r\n]*", p.LINES, p.BLANKS))
)
_GPT_4O = PreTokenizer(
    (
        p.any_of(
            p.cased(p.CAPITALS, p.SMALLS, f"(?:{p.SUFFIX})?"),
            p.THREE,
            p.SYMBOLS_SLASH,
            p.LINES,
            p.BLANKS,
        ),
    )
)
_SUFFIXED_WORD = f"{p.MARKED_WORD}(?:{p.SUFFIX})?"
_BAILING = PreTokenizer((p.words(p.ONE, lines=r"\s*[\r\n]"),))
_TINY_AYA = PreTokenizer(
    (p.DIGITS_FROM_RIGHT, p.any_of(_SUFFIXED_WORD, p.THREE, p.SYMBOLS_SLASH, p.LINES, p.BLANKS))
)

_BY_NAMES = {
    "default": PreTokenizer(
        (r"[\p{P}$+<=>^~|]+", p.GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _LLAMA3,
    "dbrx smaug-bpe chatglm-bpe": _PLAIN_LLAMA3,
    "glm4 glm5": replace(_LLAMA3, adds_bos=False),
    "minicpm5": PreTokenizer((p.THREE, p.words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            p.any_of(
                *(p.SUFFIX, p.WORD, p.THREE, p.SYMBOLS, p.LINES),
                *(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
                r"\s",
            ),
        )
    ),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", p.DEEPSEEK_LETTERS, p.DEEPSEEK_MARKS, r"\s+\z", p.WIDE_CJK, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", p.WIDE_CJK, p.ONE)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _DEEPSEEK3,
    "spark2_5": PreTokenizer(
        (p.THREE, p.CJK, p.any_of(p.PUNCTUATED, r" ?[\p{P}\p{S}]+", r"[\r\n]", p.BLANKS), p.ONE)
    ),
    "youtu": PreTokenizer(
        (p.YOUTU_CJK, p.any_of(_SUFFIXED_WORD, p.ONE, p.SYMBOLS_SLASH, p.LINES, p.BLANKS)),
        ignore_merges=True,
    ),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", p.GPT2, "[0-9][0-9][0-9]")),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _STARCODER,
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert": _GPT_2,
    "jina-v1-en jina-v2-code roberta-bpe mpt olmo jais exaone4 trillion granite-docling": _GPT_2,
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": _QWEN2,
    "qwen35": PreTokenizer(
        (p.words(p.ONE, p.MARKED_WORD, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),),
    ),
    "poro-chat bloom gpt3-finnish": PreTokenizer((p.SENTENCE,)),
    "viking": PreTokenizer((p.SENTENCE, p.ONE)),
    "tekken": PreTokenizer(
        (p.any_of(p.cased(p.CAPITALS, p.SMALLS), p.ONE, p.SYMBOLS_SLASH, p.LINES, p.BLANKS),),
        ignore_merges=True,
        adds_bos=True,
    ),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            p.ONE,
            r"[\p{P}!-/:-@\[-`{-~]",
            p.GPT2,
        ),
        adds_bos=True,
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _GPT_4O,
    "granite-embed-multi-97m": PreTokenizer(
        tuple(one.replace(r"(?=\p{L})", r"(?=[\p{L}\p{M}])") for one in _GPT_4O.patterns),
        ignore_merges=True,
    ),
    "tiny_aya cohere2moe": _TINY_AYA,
    "superbpe": PreTokenizer((r"\p{N}+", "(?=(?:[0-9]{3})+(?![0-9]))")),
    "bailingmoe bailingmoe2 llada-moe": _BAILING,
    "seed-coder": PreTokenizer((p.words(p.ONE, symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "ufakzeka": PreTokenizer((p.any_of(p.WORD, p.ONE, p.SYMBOLS, p.LINES, p.BLANKS),)),
    "kimi-k2": PreTokenizer(
        (
            p.any_of(
                f"{p.HAN}+",
                rf"[^\r\n\p{{L}}\p{{N}}]?(?:(?!{p.HAN})\p{{L}})+(?:{p.SUFFIX})?",
                *(p.THREE, p.SYMBOLS, p.LINES, p.BLANKS),
            ),
        )
    ),
    "afmoe": PreTokenizer((p.DIGITS_FROM_RIGHT, p.ASIAN, _DEEPSEEK3.patterns[-1])),
    "laguna": PreTokenizer((r"[^\n]+|\n+", *_QWEN2.patterns)),
    "exaone-moe": PreTokenizer(
        (
            p.words(
                p.ONE,
                r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]",
            ),
        )
    ),
    "sarvam-moe": PreTokenizer((r"[^\n]+|\n+",), is_raw=True),
}
PRE_TOKENIZERS = {name: rule for names, rule in _BY_NAMES.items() for name in names.split()}

_NEAREST = {
    "gemma4": "sarvam-moe",
    "granite-embed-multi-311m": "sarvam-moe",
    "whitespace": "poro-chat",
}
"""Known to the reference but not to us, and what cuts text most like it."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rule of that name.

    Raises:
        ModelError: a name that is not known, or whose rule is not supported; tells the nearest.
    """
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    nearest = _NEAREST.get(name) or difflib.get_close_matches(name, PRE_TOKENIZERS, 1, 0.0)[0]
    raise ModelError(
        f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is "
        f"{'not supported' if name in _NEAREST else 'unknown'}; the nearest that is supported is "
        f"{nearest!r}"
    )
