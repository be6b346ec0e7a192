import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.params import SamplingParams
from runtime.text import TextStream
from tests.unit.text import vocabularies as v
from tests.unit.text.test_detokenizer import split_bytes
from tests.unit.text.test_stop_strings import first_match


def play(tokenizer, ids, *, stops_at_token=False, prompt=(), **params):
    """Deltas of a request whose tokens these are, its text, and the stop string that ended it."""
    stream = TextStream(tokenizer, prompt, SamplingParams(max_tokens=10**6, **params))
    found = []
    for index, token_id in enumerate(ids):
        is_stop = stops_at_token and index == len(ids) - 1
        delta, stop = stream.push(token_id, is_stop=is_stop)
        found.append(delta)
        if stop is not None:
            break
    else:
        stop = None
    found.append(stream.finish())
    assert stream.text == "".join(found)
    return found, stream.text, stop


@given(split_bytes(st.text().map(str.encode)), st.data(), st.booleans())
def test_any_text_and_any_stop_strings(pieces, data, include):
    """Joined deltas are the decoded text up to the first stop string, wherever tokens end."""
    tokenizer = v.byte_level(*pieces)
    ids = v.ids_of(tokenizer, *pieces)
    whole = tokenizer.decode(ids)
    stops = data.draw(st.lists(st.text(min_size=1, max_size=3), max_size=2))
    if whole:
        begin = data.draw(st.integers(0, len(whole) - 1))
        stops.append(whole[begin : begin + data.draw(st.integers(1, 4))])
    stops = tuple(data.draw(st.permutations(stops)))
    _, text, stop = play(tokenizer, ids, stop=stops, include_stop_str_in_output=include)
    match = first_match(whole, stops)
    if match is None:
        assert (text, stop) == (whole, None)
    else:
        end, wanted = match
        assert stop == wanted
        assert text == whole[: end if include else end - len(wanted)]
        assert include or not any(s in text for s in stops)


@given(st.lists(st.integers(0, v.sentencepiece().vocab_size - 1)), st.text("ae<\ufffd", min_size=1))
def test_any_tokens_of_a_byte_fallback_vocabulary(ids, stop):
    tokenizer = v.sentencepiece()
    whole = tokenizer.decode(ids)
    _, text, _ = play(tokenizer, ids, stop=stop)
    assert text == whole.partition(stop)[0]


@pytest.mark.case("DT01")
def test_a_stop_string_need_not_end_with_a_token():
    pieces = (b"he", b"llo wo", b"rld")
    tokenizer = v.byte_level(*pieces)
    found, text, stop = play(tokenizer, v.ids_of(tokenizer, *pieces), stop="lo w")
    assert (found, text, stop) == (["he", "l", ""], "hel", "lo w")
    _, text, _ = play(
        tokenizer, v.ids_of(tokenizer, *pieces), stop="lo w", include_stop_str_in_output=True
    )
    assert text == "hello w"


@pytest.mark.case("DT03")
def test_streaming_gives_what_stands_before_the_stop_string():
    tokenizer = v.byte_level(b"?\n")
    ids = v.ids_of(tokenizer, b"?\n")
    assert play(tokenizer, ids, stop="\n") == (["?", ""], "?", "\n")
    found, text, stop = play(tokenizer, [*b"The EN"], stop="END")
    assert (found[-1], text, stop) == ("EN", "The EN", None)


@pytest.mark.case("DT05")
def test_the_first_deltas_are_not_empty(smollm2):
    ids = smollm2.encode("I am a small model, and I like to talk.")
    found, text, _ = play(smollm2, ids, stop="###")
    assert all(found[:-1])
    assert text == smollm2.decode(ids)


@pytest.mark.case("DT07")
def test_no_stop_string_counts_before_min_tokens():
    tokenizer = v.byte_level()
    assert play(tokenizer, [*b"xxxxxx"], stop="x", min_tokens=4)[1:] == ("xxxx", "x")
    assert play(tokenizer, [*b"axbyab"], stop="ab", min_tokens=5)[1:] == ("axby", "ab")
    assert play(tokenizer, [*b"axbya"], stop=("x", "b"), min_tokens=5)[1:] == ("axbya", None)


@pytest.mark.case("DT15")
def test_spaces_are_never_cleaned_up():
    tokenizer = v.byte_level(b"    ")
    ids = v.ids_of(tokenizer, b"    ", b".")
    assert play(tokenizer, ids)[1] == tokenizer.decode(ids) == "    ."


@pytest.mark.case("DT17")
@pytest.mark.parametrize(
    ("last", "options", "wanted"),
    [
        (b"<|end|>", {}, "hi"),
        (b"<|end|>", {"include_stop_str_in_output": True}, "hi"),
        (b"<|end|>", {"skip_special_tokens": False}, "hi"),
        (
            b"<|end|>",
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
            "hi<|end|>",
        ),
        (b"!", {}, "hi"),
        (b"!", {"include_stop_str_in_output": True}, "hi!"),
    ],
)
def test_the_stop_token_is_hidden_unless_asked_for(last, options, wanted):
    tokenizer = v.byte_level()
    ids = [*b"hi", *v.ids_of(tokenizer, last)]
    assert play(tokenizer, ids, stops_at_token=True, **options)[1] == wanted


@pytest.mark.case("DT17")
def test_a_special_token_that_did_not_stop_is_skipped_or_shown():
    tokenizer = v.byte_level()
    ids = [*b"a", *v.ids_of(tokenizer, b"<|end|>"), *b"b"]
    assert play(tokenizer, ids, ignore_eos=True)[1] == "ab"
    assert play(tokenizer, ids, ignore_eos=True, skip_special_tokens=False)[1] == "a<|end|>b"


def test_held_text_comes_out_before_a_hidden_stop_token():
    tokenizer = v.byte_level()
    ids = [*b"The EN", *v.ids_of(tokenizer, b"<|end|>")]
    assert play(tokenizer, ids, stops_at_token=True, stop="END")[1:] == ("The EN", None)


def test_a_stop_string_at_the_flushed_end_is_cut_too():
    """An incomplete character becomes U+FFFD only when the request ends."""
    assert play(v.byte_level(), [0x61, 0xE4], stop="\ufffd")[1] == "a"


def test_nothing_comes_after_a_stop_string():
    stream = TextStream(v.byte_level(), [], SamplingParams(stop="b"))
    assert [stream.push(t) for t in b"abc"] == [("a", None), ("", "b"), ("", None)]
    assert stream.finish() == ""
    assert stream.text == "a"


END = "<|end|>"


@pytest.mark.parametrize(
    ("stop", "options", "wanted"),
    [
        (END, {}, "Hi"),
        (END, {"include_stop_str_in_output": True}, "Hi<|end|>"),
        (END, {"skip_special_tokens": False}, "Hi"),
        ("i<|end|>", {}, "H"),
        ("<|end|>x", {}, "Hi"),
        ("i<|end|>xy", {"include_stop_str_in_output": True}, "Hi<|end|>xy"),
        ("ixy", {}, "H"),  # the shown text alone
        ("ixy", {"include_stop_str_in_output": True}, "Hi<|end|>xy"),
    ],
)
def test_a_stop_string_may_hold_special_tokens(stop, options, wanted):
    tokenizer = v.byte_level()
    ids = [*b"Hi", *v.ids_of(tokenizer, END.encode()), *b"xyz"]
    assert play(tokenizer, ids, stop=stop, ignore_eos=True, **options)[1:] == (wanted, stop)


@pytest.mark.parametrize("stop", ["|", "|end|", "i<|", "|>x"])
def test_a_part_of_a_hidden_token_is_no_stop_string(stop):
    tokenizer = v.byte_level()
    ids = [*b"Hi", *v.ids_of(tokenizer, END.encode()), *b"xyz"]
    assert play(tokenizer, ids, stop=stop, ignore_eos=True)[1:] == ("Hixyz", None)


def test_a_special_token_that_is_only_near_to_a_stop_string_is_hidden():
    tokenizer = v.byte_level()
    ids = [*b"Hi", *v.ids_of(tokenizer, END.encode()), *b"xyz"]
    assert play(tokenizer, ids, stop=END + "!", ignore_eos=True)[1:] == ("Hixyz", None)


@pytest.mark.parametrize(("stop", "text"), [(END, "Hi."), (".<|end|>", "Hi")])
def test_the_token_that_ends_a_request_may_complete_a_stop_string(stop, text):
    tokenizer = v.byte_level()
    ids = [*b"Hi.", *v.ids_of(tokenizer, END.encode())]
    assert play(tokenizer, ids, stops_at_token=True, stop=stop)[1:] == (text, stop)


def test_a_special_stop_string_waits_for_min_tokens():
    tokenizer = v.byte_level()
    end = v.ids_of(tokenizer, END.encode())
    ids = [*b"a", *end, *b"b", *end]
    assert play(tokenizer, ids, stop=END, min_tokens=2, ignore_eos=True)[1:] == ("ab", END)
