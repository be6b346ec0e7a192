"""Strings to try tokenizers with."""

import random
import unicodedata

from tools._vocabulary_gguf import END_MARK, USER_MARK

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
    " \u0e20\u0e32\u0e29\u0e32 \u0627\u0644\u0639\u0631\u0628\u064a\u0629\u060c \u05e2\u05d1",
    "\u0437\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439"
    " \u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u10d2\u10d0\u10db",
    "$5 + 3 <= 9 ~ `a` ^ | \u20ac10 \u00a7"
    " \u2026\u2018q\u2019 \u201cQ\u201d \u3001\u3002\uff08\u4e2d\uff09/path//a/",
    "<|im_start|>user\nhi<|im_end|>\n <my tag> a <tool_call>",
    f"{USER_MARK}hi{END_MARK}  {END_MARK}",
    "IMGIMGABCZ <sentinel:12> (a) .Net #tag @me _x_ a.b,c!d?e",
    "a b c d e f  ab cd\x00\x1c\x7f\x85z",
    "it'swe'reI'mDON'Tx'd \u00e9'll     7 blanks       9         12            \n\n  \n\n x",
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
