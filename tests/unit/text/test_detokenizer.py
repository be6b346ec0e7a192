from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from runtime.errors import ModelError
from runtime.text import Detokenizer
from tests.unit.text import vocabularies as v

LOCAL_DECODERS = {
    "none": None,
    "fuse": decoders.Fuse(),
    "metaspace": decoders.Metaspace(),
    "metaspace_never": decoders.Metaspace(prepend_scheme="never"),
    "wordpiece": decoders.WordPiece(),
    "wordpiece_plain": decoders.WordPiece(cleanup=False),
    "bpe": decoders.BPEDecoder(),
    "strip": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    ),
}


def deltas(tokenizer, ids, prompt=(), skip=True):
    detokenizer = Detokenizer(tokenizer, prompt, skip)
    return [*(detokenizer.push([i]) for i in ids), detokenizer.finish()]


@st.composite
def split_bytes(draw, data):
    """A byte string, cut into tokens anywhere."""
    whole = draw(data)
    cuts = draw(st.sets(st.integers(0, len(whole)), max_size=12))
    edges = sorted({0, len(whole), *cuts})
    return [whole[a:b] for a, b in pairwise(edges)]


@given(split_bytes(st.text().map(str.encode)))
def test_text_split_anywhere_comes_out_whole(pieces):
    tokenizer = v.byte_level(*pieces)
    found = deltas(tokenizer, v.ids_of(tokenizer, *pieces))
    assert "".join(found) == b"".join(pieces).decode()


@given(split_bytes(st.binary()))
def test_any_bytes_equal_the_one_shot_decode(pieces):
    tokenizer = v.byte_level(*pieces)
    ids = v.ids_of(tokenizer, *pieces)
    found = deltas(tokenizer, ids)
    assert "".join(found) == tokenizer.backend.decode(ids) == tokenizer.decode(ids)


@given(split_bytes(st.binary()))
def test_text_is_shown_as_soon_as_it_is_certain(pieces):
    tokenizer = v.byte_level(*pieces)
    ids = v.ids_of(tokenizer, *pieces)
    shown = ""
    for count, delta in enumerate(deltas(tokenizer, ids)[:-1], start=1):
        shown += delta
        assert tokenizer.decode(ids[:count]) in (shown, shown + "\ufffd")


@given(st.lists(st.integers(0, v.sentencepiece().vocab_size - 1)))
def test_byte_fallback_equals_the_one_shot_decode(ids):
    tokenizer = v.sentencepiece()
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)
    assert "".join(deltas(tokenizer, ids, skip=False)) == tokenizer.decode(ids, False)


@given(st.lists(st.sampled_from(["世", "▁the", "é", "\n", "🔥", "▁", "</s>", "<unk>", "a"])))
def test_byte_fallback_of_whole_characters_equals_the_library(parts):
    tokenizer = v.sentencepiece()
    known = tokenizer.token_id
    ids = [
        i
        for part in parts
        for i in (
            [known(part)]
            if known(part) is not None
            else v.ids_of(tokenizer, *(f"<0x{b:02X}>" for b in part.encode()))
        )
    ]
    assert "".join(deltas(tokenizer, ids)) == tokenizer.backend.decode(ids)


def test_an_incomplete_byte_run_keeps_the_characters_beside_it():
    """The library would turn the whole run of byte tokens to U+FFFD, part of which was shown."""
    tokenizer = v.sentencepiece()
    ids = v.ids_of(tokenizer, "<0x41>", "<0xE4>", "<0xB8>", "<0x96>", "<0xE4>", "<0xB8>", "the")
    assert deltas(tokenizer, ids) == ["A", "", "", "世", "", "", "\ufffd\ufffdthe", ""]
    assert tokenizer.decode(ids) == "A世\ufffd\ufffdthe"


@pytest.mark.parametrize("name", LOCAL_DECODERS)
@settings(max_examples=200)
@given(data=st.data())
def test_every_decoder_equals_the_one_shot_decode(name, data):
    tokenizer = v.word_level(LOCAL_DECODERS[name])
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids) == tokenizer.backend.decode(ids)


@pytest.mark.parametrize("decoder", [decoders.CTC(), decoders.Strip(" ", 0, 1)])
def test_a_decoder_that_looks_ahead_is_refused(decoder):
    with pytest.raises(ModelError, match=r"cannot be streamed; supported: ByteLevel"):
        v.word_level(decoder)


@pytest.mark.case("DT09")
@pytest.mark.parametrize("text", ["Hi 🔥 ďábel 世", "👩‍👩‍👧 e\u0301 ∀x"])
def test_characters_are_never_split(text, smollm2):
    for tokenizer in (smollm2, v.byte_level(), v.sentencepiece()):
        ids = tokenizer.encode(text, add_special_tokens=False)
        found = deltas(tokenizer, ids)
        assert "".join(found) == tokenizer.decode(ids) == text
        assert not any("\ufffd" in delta for delta in found)


@pytest.mark.case("DT11")
def test_no_character_is_shown_twice():
    pieces = (b"A \xe4\xb8\x96\xe4", b"\xb8\x96a\xc3", b"\xa9b")
    tokenizer = v.byte_level(*pieces)
    assert deltas(tokenizer, v.ids_of(tokenizer, *pieces)) == ["A 世", "世a", "éb", ""]


@pytest.mark.case("DT13")
def test_a_prompt_that_ends_within_a_character_does_not_leak():
    tokenizer = v.byte_level()
    snowman = "☃".encode()
    prompt = [*b"Hello world ", *snowman[:2]]
    assert deltas(tokenizer, [snowman[2], *b"ab"], prompt) == ["☃", "a", "b", ""]
    assert deltas(tokenizer, [*b"ab"], prompt) == ["a", "b", ""]
    assert deltas(tokenizer, [*snowman], prompt) == ["", "", "☃", ""]
    assert deltas(tokenizer, [], prompt) == [""]

    tokenizer = v.sentencepiece()
    first, second, third = v.ids_of(tokenizer, *(f"<0x{b:02X}>" for b in snowman))
    (the,) = v.ids_of(tokenizer, "▁the")
    assert deltas(tokenizer, [third, the], [the, first, second]) == ["☃", " the", ""]
    assert deltas(tokenizer, [the], [the, first, second]) == ["the", ""]
    assert deltas(tokenizer, [first, second, third], [first, second]) == ["", "", "☃", ""]


@given(split_bytes(st.text().map(str.encode)), st.binary(max_size=6))
def test_only_an_incomplete_character_of_the_prompt_matters(pieces, prompt):
    tokenizer = v.byte_level(*pieces)
    ids = v.ids_of(tokenizer, *pieces)
    assert "".join(deltas(tokenizer, ids, [*prompt])) == tokenizer.decode(ids)


class Counting:
    """A tokenizer that counts the pieces that a stream decodes."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.num_pieces = 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def decode_pieces(self, pieces):
        self.num_pieces += len(pieces)
        return self._tokenizer.decode_pieces(pieces)


@pytest.mark.case("DT19")
@pytest.mark.parametrize("piece", ["<0xE4>", "<0xB8>", "<0x41>", "▁the", "▁", "</s>"])
def test_work_is_linear_in_the_tokens(piece):
    ids = v.ids_of(v.sentencepiece(), piece) * 2000
    work = {}
    for count in (200, 2000):
        tokenizer = Counting(v.sentencepiece())
        found = deltas(tokenizer, ids[:count])
        assert "".join(found) == tokenizer.decode(ids[:count])
        work[count] = tokenizer.num_pieces
    assert work[2000] <= 11 * work[200]
    assert work[2000] <= 12 * 2000


@pytest.mark.case("DT19")
@pytest.mark.parametrize("byte", [0xE4, 0xB8, 0xFF])
def test_bytes_that_never_complete_are_shown_at_once(byte):
    tokenizer = v.byte_level()
    found = deltas(tokenizer, [byte] * 2000)
    assert "".join(found) == "\ufffd" * 2000
    assert all(len(delta) <= 1 for delta in found)
    assert found[1:-1] == ["\ufffd"] * 1999


def test_special_tokens_are_shown_only_when_asked():
    tokenizer = v.byte_level()
    (end,) = v.ids_of(tokenizer, "<|end|>")
    ids = [*b"a", end, *b"b"]
    assert deltas(tokenizer, ids) == ["a", "", "b", ""]
    assert deltas(tokenizer, ids, skip=False) == ["a", "<|end|>", "b", ""]


def test_ids_without_a_piece_give_no_text():
    tokenizer = v.byte_level()
    assert deltas(tokenizer, [97, 10**6, 98]) == ["a", "", "b", ""]
    assert deltas(v.sentencepiece(), [10**6]) == ["", ""]
