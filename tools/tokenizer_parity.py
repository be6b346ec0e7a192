"""GGUF tokenizers beside llama.cpp's own: ids of the same strings under every pre-tokenizer.

usage: tokenizer_parity.py PYTHON [--strings N] [--seed N] [--only NAME...] [--files FILE...]
       tokenizer_parity.py PYTHON --fixture FILE

PYTHON is an interpreter with llama-cpp-python. Files that hold a vocabulary alone are written by
the gguf library; both sides read them. --files tries whole models too. Exit status 1 where an id
differs. --fixture writes what the unit test holds the rules against: few strings, a small
vocabulary, llama.cpp's ids.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from runtime.text.gguf_rules import PRE_TOKENIZERS
from runtime.text.gguf_tokenizer import gguf_tokenizer
from tools._tokenizer_strings import CURATED, strings
from tools._vocabulary_gguf import (
    train_bytes,
    train_pieces,
    write_sentencepiece,
    write_vocabulary,
)

WORDS = ("Hello", "\u0120world", "cafe", "abc", "12", "123", "...", "\u0120\u0120", "don", "'LL")
"""Taken whole under ignore_merges: no merges lead to them."""
SENTENCEPIECE = {
    "llama": {},
    "llama-no-prefix": {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True},
}


def write_files(folder, names, merges, pieces):
    """One file for each name."""
    for name in names:
        path = folder / f"{name}.gguf"
        if name in SENTENCEPIECE:
            write_sentencepiece(path, pieces, **SENTENCEPIECE[name])
        elif name == "sarvam-moe":
            write_raw(path, merges)
        else:
            made = {merge.replace(" ", "") for merge in merges}
            words = [word for word in WORDS if word not in made]
            write_vocabulary(path, words, merges, pre=name)


def write_raw(path, merges):
    """Pieces in UTF-8: those merges of the byte-level ones that are ASCII."""
    ours = [merge.replace("\u0120", "\u2581").replace("\u010a", "\n") for merge in merges]
    ascii_only = [m for m in ours if all(c < "\x7f" or c == "\u2581" for c in m)]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    write_vocabulary(path, ["\u2581", "\n", *fallback], ascii_only, pre="sarvam-moe")


def reference_ids(python, folder, texts):
    """Name to llama.cpp's ids."""
    (folder / "texts.json").write_text(json.dumps(texts))
    script = Path(__file__).parent / "peers" / "tokenize_llamacpp.py"
    subprocess.run([python, script, folder], check=True)
    return {p.stem: json.loads(p.with_suffix(".json").read_text()) for p in folder.glob("*.gguf")}


def compare(folder, name, texts, wanted):
    """How many strings agree; the first that does not is printed."""
    backend, _ = gguf_tokenizer(folder / f"{name}.gguf")
    encoded = [backend.encode(text).ids for text in texts]
    wrong = [i for i, ids in enumerate(encoded) if ids != wanted[i]]
    if wrong:
        i = wrong[0]
        told = [[backend.id_to_token(t) for t in ids] for ids in (encoded[i], wanted[i])]
        print(f"{name}: {texts[i]!r}\n  here      {told[0]}\n  llama.cpp {told[1]}")
    return len(texts) - len(wrong)


def fixture(python):
    """Strings and merges, and for each string its ids with the names that give them."""
    texts, names = list(CURATED), [*SENTENCEPIECE, *PRE_TOKENIZERS]
    merges, pieces = train_bytes(texts * 2, 260), train_pieces(texts, 320)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        write_files(folder, names, merges, pieces)
        found = reference_ids(python, folder, texts)
    ids = []
    for i in range(len(texts)):
        groups = {}
        for name in names:
            groups.setdefault(" ".join(map(str, found[name][i])), []).append(name)
        ids.append({" ".join(names): text for text, names in groups.items()})
    return {"texts": texts, "merges": merges, "pieces": pieces, "ids": ids}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("--strings", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[*SENTENCEPIECE, *PRE_TOKENIZERS])
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    parser.add_argument("--fixture", type=Path)
    options = parser.parse_args()
    if options.fixture:
        options.fixture.write_text(json.dumps(fixture(options.python), indent=0) + "\n")
        return 0
    texts, agreed = strings(options.strings, options.seed), {}
    with tempfile.TemporaryDirectory() as root:
        folder, started = Path(root), time.perf_counter()
        write_files(folder, options.only, train_bytes(texts, 3000), train_pieces(texts, 3000))
        for path in options.files:
            (folder / path.name).symlink_to(path.resolve())
        wanted = reference_ids(options.python, folder, texts)
        for name in [*options.only, *(path.stem for path in options.files)]:
            agreed[name] = compare(folder, name, texts, wanted[name])
            print(f"{name}: {agreed[name]} of {len(texts)}")
    whole = sum(count == len(texts) for count in agreed.values())
    print(f"{whole} of {len(agreed)} agree in every id; {time.perf_counter() - started:.0f} s")
    return int(whole < len(agreed))


if __name__ == "__main__":
    sys.exit(main())
