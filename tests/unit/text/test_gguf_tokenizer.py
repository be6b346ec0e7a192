"""GGUF tokenizers against llama.cpp's ids (tools/tokenizer_parity.py wrote them), and by hand."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.config.schema import ModelConfig
from runtime.errors import ModelError
from runtime.text import Detokenizer, load_tokenizer
from runtime.text.gguf_rules import PRE_TOKENIZERS
from runtime.text.gguf_tokenizer import gguf_tokenizer
from tools._vocabulary_gguf import (
    CONTROL,
    END_MARK,
    SPECIALS,
    USER_DEFINED,
    USER_MARK,
    write_keys,
    write_sentencepiece,
    write_vocabulary,
)
from tools.tokenizer_parity import SENTENCEPIECE, write_files

GOLDEN = json.loads(Path(__file__).with_name("gguf_golden.json").read_text())
DIGITS = ["1 2", "3 4", "12 34"]


def load(path, **config):
    return load_tokenizer(ModelConfig(path=str(path), cache_dir=str(path.parent / "c"), **config))


def loaded(folder, *args, **keys):
    return load(write_vocabulary(folder / "v.gguf", *args, **keys))


def pieces(tokenizer, text, special=False):
    return tokenizer.pieces(tokenizer.encode(text, add_special_tokens=special))


@pytest.mark.parametrize("name", [*SENTENCEPIECE, *PRE_TOKENIZERS])
def test_ids_are_those_of_the_reference(tmp_path, name):
    write_files(tmp_path, [name], GOLDEN["merges"], GOLDEN["pieces"])
    backend, _ = gguf_tokenizer(tmp_path / f"{name}.gguf")
    for text, groups in zip(GOLDEN["texts"], GOLDEN["ids"], strict=True):
        (wanted,) = (ids for names, ids in groups.items() if name in names.split())
        assert backend.encode(text).ids == [int(i) for i in wanted.split()], text


@pytest.mark.slow
def test_ids_of_the_real_model_are_those_of_the_reference(smollm2):
    wanted = {
        "The year 2024 has 366 days.": [
            *(504, 713, 216, 34, 32, 34, 36, 553, 216, 35, 38, 38, 2009, 30),
        ],
        "<|im_start|>user\nnaïve café, I'm 12!<|im_end|>\n": [
            *(1, 4093, 198, 3546, 46494, 37366, 28, 339, 5248, 216, 33, 34, 17, 2, 198),
        ],
        "a  b   c\t\n\n x": [81, 216, 278, 256, 265, 197, 1116, 1792],
    }
    assert {text: smollm2.encode(text) for text in wanted} == wanted


# -- each rule by hand ----------------------------------------------------------------------------


def test_digits_stand_alone_under_smollm(tmp_path):
    assert pieces(loaded(tmp_path, merges=["1 2"], pre="smollm"), "12") == ["1", "2"]


def test_a_word_of_the_vocabulary_is_taken_whole_where_merges_are_ignored(tmp_path):
    assert pieces(loaded(tmp_path, ["abc"], pre="llama-bpe"), "abc abc") == ["abc", "Ġ", *"abc"]
    assert pieces(loaded(tmp_path, ["abc"], pre="gpt-2"), "abc") == [*"abc"]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"pre": "llama-bpe"}, ["<s>", "a"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["a"]),
        ({"pre": "gpt-2"}, ["a"]),
        ({"pre": "gpt-2", "add_bos_token": True}, ["<s>", "a"]),
        ({"pre": "gpt-2", "add_eos_token": True, "eos_token_id": 258}, ["a", "<|im_end|>"]),
    ],
)
def test_bos_and_eos_by_rule_and_by_key(tmp_path, keys, wanted):
    assert pieces(loaded(tmp_path, **keys), "a", special=True) == wanted


def test_a_bos_that_is_not_named_is_not_added(tmp_path, caplog):
    tokenizer = loaded(tmp_path, pre="llama-bpe", bos_token_id=None)
    assert pieces(tokenizer, "a", special=True) == ["a"]
    assert "asks for BOS but names no such token" in caplog.text


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("deepseek-llm", ["1234"]),
        ("deepseek-coder", [*"1234"]),
        ("deepseek-v3", ["12", "3", "4"]),
        ("llama-bpe", ["12", "3", "4"]),
        ("default", ["12", "3", "4"]),
        ("qwen2", [*"1234"]),
        ("tekken", [*"1234"]),
        ("gpt-2", ["1234"]),
    ],
)
def test_each_rule_cuts_numbers_its_own_way(tmp_path, pre, wanted, caplog):
    assert pieces(loaded(tmp_path, merges=DIGITS, pre=pre), "1234") == wanted
    assert not caplog.text


def test_without_a_rule_the_default_is_taken_and_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    assert pieces(loaded(tmp_path, merges=DIGITS), "1234") == ["12", "3", "4"]
    assert "names no pre-tokenizer (tokenizer.ggml.pre): the default one is taken" in caplog.text


@pytest.mark.parametrize(
    ("pre", "says"),
    [
        ("lama-bpe", r"'lama-bpe' .* unknown; the nearest that is supported is 'llama-bpe'"),
        ("qwen3", r"'qwen3' .* unknown; the nearest that is supported is 'qwen"),
        ("gemma4", r"'gemma4' .* not supported; the nearest that is supported is 'sarvam-moe'"),
        ("whitespace", r"'whitespace' .* not supported; the nearest"),
    ],
)
def test_an_unknown_rule_is_refused_with_the_nearest(tmp_path, pre, says):
    with pytest.raises(ModelError, match=says):
        loaded(tmp_path, pre=pre)


def test_a_user_defined_token_may_hold_a_space(tmp_path):
    tokenizer = loaded(tmp_path, pre="gpt-2")
    ids = tokenizer.encode("<my tag>a")
    assert tokenizer.pieces(ids) == ["<my tag>", "a"]
    assert tokenizer.decode(ids) == "<my tag>a"


def test_control_tokens_outside_the_byte_alphabet(tmp_path):
    tokenizer = loaded(tmp_path, merges=["h i"], pre="deepseek-v3")
    ids = tokenizer.encode(f"{USER_MARK}hi{END_MARK}")
    assert tokenizer.pieces(ids) == [USER_MARK, "hi", END_MARK]
    assert [tokenizer.token_id(mark) in tokenizer.special_ids for mark in (USER_MARK, "hi")] == [
        True,
        False,
    ]
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"{USER_MARK}hi{END_MARK}"
    assert tokenizer.token_bytes(ids[0]) == USER_MARK.encode()


def test_an_end_mark_is_control_whatever_its_type(tmp_path):
    specials = {"<s>": CONTROL, "<|im_end|>": USER_DEFINED, "<tag>": USER_DEFINED}
    tokenizer = loaded(tmp_path, specials=specials, pre="gpt-2")
    assert tokenizer.decode(tokenizer.encode("a<|im_end|><tag>")) == "a<tag>"


def test_bytes_that_the_vocabulary_lacks_part_what_stands_beside_them(tmp_path):
    tokens = ["!", "?", "!?", "Ġ"]
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["! ?"]}
    tokenizer = load(write_keys(tmp_path / "v.gguf", keys))
    assert pieces(tokenizer, "!\x06? !?\x06") == ["!", "?", "Ġ", "!?"]


# -- SentencePiece --------------------------------------------------------------------------------

WORDS = ["▁the", "▁t", "he", "▁", "t", "h", "e", "世"]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path):
    tokenizer = load(write_sentencepiece(tmp_path / "s.gguf", WORDS))
    ids = tokenizer.encode("the 世é")
    assert tokenizer.pieces(ids) == ["<s>", "▁the", "▁", "世", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "the 世é"
    stream = Detokenizer(tokenizer)
    assert "".join(stream.push([i]) for i in ids) + stream.finish() == "the 世é"


@pytest.mark.parametrize(("prefix", "wanted"), [(True, ["▁the"]), (False, ["t", "he"])])
def test_sentencepiece_prefix(tmp_path, prefix, wanted):
    path = write_sentencepiece(tmp_path / "s.gguf", WORDS, add_space_prefix=prefix)
    tokenizer = load(path)
    assert pieces(tokenizer, "the") == wanted
    assert pieces(tokenizer, "<|im_end|>the") == ["<|im_end|>", *wanted]
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


# -- what stands beside the vocabulary ------------------------------------------------------------


def test_special_tokens_by_name(tmp_path):
    last = 256 + len(SPECIALS)
    tokenizer = loaded(
        tmp_path, pre="gpt-2", eos_token_id=258, eot_token_id=260, padding_token_id=last
    )
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "eot_token": END_MARK,
    }
    assert tokenizer.eos_token_id == 258
    assert tokenizer.vocab_size == last


def test_chat_templates_by_name(tmp_path):
    import gguf

    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a"])
    writer.add_token_merges(["x"])
    tools = {"name": "tool_use", "template": "tools"}
    writer.add_chat_template([{"name": "default", "template": "plain"}, tools])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    chat = [{"role": "user", "content": "a"}]
    tokenizer = load(path)
    assert tokenizer.render_chat(chat) == "plain"
    assert tokenizer.render_chat(chat, tools=[{"type": "function"}]) == "tools"


def test_neither_start_needs_transformers(tmp_path):
    path, cache = write_vocabulary(tmp_path / "v.gguf", pre="gpt-2"), str(tmp_path / "cache")
    code = (
        "import sys; from runtime.config.schema import ModelConfig; from runtime.text import *\n"
        f"load_tokenizer(ModelConfig(path={str(path)!r}, cache_dir={cache!r}))\n"
        "print({'torch', 'transformers', 'jinja2', 'gguf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_is_kept_equals_what_was_built(tmp_path):
    for name in ("llama-no-prefix", "llama-bpe", "sarvam-moe", "superbpe"):
        write_files(tmp_path, [name], GOLDEN["merges"], GOLDEN["pieces"])
        first, second = (load(tmp_path / f"{name}.gguf") for _ in range(2))
        assert first.backend.to_str() == second.backend.to_str()
        for text in GOLDEN["texts"]:
            assert first.encode(text) == second.encode(text)


# -- files that hold none -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("bert", r"'bert' \(WordPiece\); supported: gpt2 .*, llama "),
        ("t5", r"'t5' \(Unigram\)"),
        ("rwkv", r"'rwkv'"),
        ("gemma4", r"'gemma4'"),
        ("no_vocab", r"'no_vocab' \(no tokenizer\)"),
        ("other", r"'other' \(unknown\)"),
        (None, r"holds no tokenizer"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, model, says):
    with pytest.raises(ModelError, match=rf"v\.gguf cannot be read: .*{says}"):
        loaded(tmp_path, model=model)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"tokens": ["a", "b", "a"]}, "holds 'a' twice"),
        (
            {"tokens": ["a", "b"], "merges": ["a b"]},
            "a merge makes 'ab', which the vocabulary lacks",
        ),
        ({"tokens": ["a"], "merges": None}, "merges is missing"),
    ],
)
def test_damaged_vocabularies(tmp_path, keys, says):
    keys = {"model": "gpt2", "pre": "gpt-2", "merges": ["x"], **keys}
    with pytest.raises(ModelError, match=says):
        load(write_keys(tmp_path / "v.gguf", keys))
