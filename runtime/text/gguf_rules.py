"""The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, by the format's reference.

They are llama.cpp's (src/llama-vocab.cpp, src/unicode.cpp), where they differ from the models' own
too: `youtu` and `tiny_aya` do not part words at capitals. Each pattern cuts the pieces that the one
before it left, at its matches; what lies between matches is a piece too. Patterns are Oniguruma's.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from runtime.errors import ModelError


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


# Classes of the reference's regexes leave out non-ASCII blanks that lie in their ranges.
_SUFFIX = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LINES = r"\s*[\r\n]+"
_BLANKS = r"\s+(?!\S)|\s+"
_GPT2 = rf"'(?:[stmd]|re|ve|ll)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_BLANKS}"
_DIGITS_FROM_RIGHT = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_CJK = "[\u4e00-\u9fa5\u3040-\u30ff]+"
_WIDE_CJK = "(?:(?!\\s)[\u0800-\u9fa5\uac00-\ud7ff])+"
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_PUNCTUATED = rf"{_ASCII_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_CAPITALS, _SMALLS = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_SENTENCE = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_CJK = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    f"\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_CJK}"
)
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943]+"
)
_DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+"
_HAN = (
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef"
    "\U0002f800-\U0002fa1f]"
)


def _any(*patterns: str) -> str:
    return "|".join(patterns)


def _cased(capitals: str, smalls: str, suffix: str = "") -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{capitals}*{smalls}+{suffix}|{start}{capitals}+{smalls}*{suffix}"


def _words(digits: str, word: str = _WORD, symbols: str = _SYMBOLS, lines: str = _LINES) -> str:
    return _any(_SUFFIX, word, digits, symbols, lines, _BLANKS)


_THREE, _ONE = r"\p{N}{1,3}", r"\p{N}"
_LLAMA3 = PreTokenizer((_words(_THREE),), ignore_merges=True, adds_bos=True)
_GPT_2 = PreTokenizer((_GPT2,))
_STARCODER = PreTokenizer((_ONE, _GPT2))
_QWEN2 = PreTokenizer((_words(_ONE),))
_PLAIN_LLAMA3 = replace(_LLAMA3, ignore_merges=False, adds_bos=False)
_DEEPSEEK3 = PreTokenizer(
    (_THREE, _CJK, _any(_PUNCTUATED, r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _BLANKS))
)
_GPT_4O = PreTokenizer(
    (_any(_cased(_CAPITALS, _SMALLS, f"(?:{_SUFFIX})?"), _THREE, _SYMBOLS_SLASH, _LINES, _BLANKS),)
)
_SUFFIXED_WORD = f"{_MARKED_WORD}(?:{_SUFFIX})?"
_BAILING = PreTokenizer((_words(_ONE, lines=r"\s*[\r\n]"),))
_TINY_AYA = PreTokenizer(
    (_DIGITS_FROM_RIGHT, _any(_SUFFIXED_WORD, _THREE, _SYMBOLS_SLASH, _LINES, _BLANKS))
)

_BY_NAMES = {
    "default": PreTokenizer(
        (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _LLAMA3,
    "dbrx smaug-bpe chatglm-bpe": _PLAIN_LLAMA3,
    "glm4 glm5": replace(_LLAMA3, adds_bos=False),
    "minicpm5": PreTokenizer((_THREE, _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            _any(
                *(_SUFFIX, _WORD, _THREE, _SYMBOLS, _LINES),
                *(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
                r"\s",
            ),
        )
    ),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_MARKS, r"\s+\z", _WIDE_CJK, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _WIDE_CJK, _ONE)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _DEEPSEEK3,
    "spark2_5": PreTokenizer(
        (_THREE, _CJK, _any(_PUNCTUATED, r" ?[\p{P}\p{S}]+", r"[\r\n]", _BLANKS), _ONE)
    ),
    "youtu": PreTokenizer(
        (_YOUTU_CJK, _any(_SUFFIXED_WORD, _ONE, _SYMBOLS_SLASH, _LINES, _BLANKS)),
        ignore_merges=True,
    ),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _STARCODER,
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert": _GPT_2,
    "jina-v1-en jina-v2-code roberta-bpe mpt olmo jais exaone4 trillion granite-docling": _GPT_2,
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": _QWEN2,
    "qwen35": PreTokenizer(
        (_words(_ONE, _MARKED_WORD, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),),
    ),
    "poro-chat bloom gpt3-finnish": PreTokenizer((_SENTENCE,)),
    "viking": PreTokenizer((_SENTENCE, _ONE)),
    "tekken": PreTokenizer(
        (_any(_cased(_CAPITALS, _SMALLS), _ONE, _SYMBOLS_SLASH, _LINES, _BLANKS),),
        ignore_merges=True,
        adds_bos=True,
    ),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            _ONE,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _GPT_4O,
    "granite-embed-multi-97m": PreTokenizer(
        tuple(p.replace(r"(?=\p{L})", r"(?=[\p{L}\p{M}])") for p in _GPT_4O.patterns),
        ignore_merges=True,
    ),
    "tiny_aya cohere2moe": _TINY_AYA,
    "superbpe": PreTokenizer((r"\p{N}+", "(?=(?:[0-9]{3})+(?![0-9]))")),
    "bailingmoe bailingmoe2 llada-moe": _BAILING,
    "seed-coder": PreTokenizer((_words(_ONE, symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "ufakzeka": PreTokenizer((_any(_WORD, _ONE, _SYMBOLS, _LINES, _BLANKS),)),
    "kimi-k2": PreTokenizer(
        (
            _any(
                f"{_HAN}+",
                rf"[^\r\n\p{{L}}\p{{N}}]?(?:(?!{_HAN})\p{{L}})+(?:{_SUFFIX})?",
                *(_THREE, _SYMBOLS, _LINES, _BLANKS),
            ),
        )
    ),
    "afmoe": PreTokenizer((_DIGITS_FROM_RIGHT, _ASIAN, _DEEPSEEK3.patterns[-1])),
    "laguna": PreTokenizer((r"[^\n]+|\n+", *_QWEN2.patterns)),
    "exaone-moe": PreTokenizer(
        (
            _words(
                _ONE,
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
