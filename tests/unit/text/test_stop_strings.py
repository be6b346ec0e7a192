import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text import StopStrings

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
PARTS = st.lists(st.text("abc", max_size=6), max_size=8)


def run(stops, parts, include=False):
    """Every emitted text, the held rest at the end, and the stop string."""
    cutter, emitted = StopStrings(stops, include), []
    for part in parts:
        text, stop = cutter.push(part)
        emitted.append(text)
        if stop is not None:
            return emitted, stop
    return [*emitted, cutter.finish()], None


def first_match(text, stops):
    """By definition: the first end, and of those the longest."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return end, max(found, key=len)
    return None


def open_len(text, stops):
    """Length of the longest end of the text that begins a stop string."""
    starts = {s[:n] for s in stops for n in range(len(s))}
    return max((n for n in range(len(text) + 1) if text[len(text) - n :] in starts), default=0)


@given(PARTS, STOPS, st.booleans())
def test_the_cut_is_exact(parts, stops, include):
    whole = "".join(parts)
    emitted, stop = run(stops, parts, include)
    match = first_match(whole, stops)
    if match is None:
        assert (stop, "".join(emitted)) == (None, whole)
    else:
        end, wanted = match
        assert stop == wanted
        assert "".join(emitted) == whole[: end if include else end - len(wanted)]
    if not include:
        assert not any(s in "".join(emitted) for s in stops)


@given(PARTS, STOPS)
def test_no_more_is_held_than_can_become_a_stop_string(parts, stops):
    cutter, taken, shown = StopStrings(stops), "", ""
    for part in parts:
        text, stop = cutter.push(part)
        if stop is not None:
            break
        taken, shown = taken + part, shown + text
        assert shown == taken[: len(taken) - open_len(taken, stops)]


@given(PARTS, STOPS, st.integers(0, 8))
def test_matches_within_the_unarmed_start_do_not_count(parts, stops, armed_from):
    cutter, shown, taken = StopStrings(stops), "", ""
    for index, part in enumerate(parts):
        text, stop = cutter.push(part, armed=index >= armed_from)
        begin, taken, shown = len(taken), taken + part, shown + text
        new = range(begin + 1, len(taken) + 1)
        ends = [e for e in new if any(taken[:e].endswith(s) for s in stops)]
        if index < armed_from or not ends:
            assert stop is None
            assert shown == taken[: len(taken) - open_len(taken, stops)]
        else:
            wanted = max((s for s in stops if taken[: ends[0]].endswith(s)), key=len)
            assert stop == wanted
            assert shown == taken[: ends[0] - len(wanted)]
            return
    assert shown + cutter.finish() == taken


@pytest.mark.case("DT03")
def test_text_before_and_held_text_are_not_lost():
    assert run(["\n"], ["?\n"]) == (["?"], "\n")
    assert run(["END"], ["the ", "EN"]) == (["the ", "", "EN"], None)


@pytest.mark.case("DT05")
def test_text_that_begins_no_stop_string_is_not_delayed():
    assert run(["###"], list("I am #2")) == (["I", " ", "a", "m", " ", "", "#2", ""], None)
    cutter, shown = StopStrings(["###"]), 0
    for count, char in enumerate("a##b##", start=1):
        shown += len(cutter.push(char)[0])
        assert count - shown <= 2


def test_nothing_comes_after_a_stop_string():
    cutter = StopStrings(["b"])
    assert cutter.push("abc") == ("a", "b")
    assert cutter.push("d") == ("", None)
    assert cutter.finish() == ""


def test_work_is_linear_in_the_text():
    """Each of two automata takes at most two moves a character, however the stop string repeats."""

    class Counted(StopStrings):
        moves = 0

        def _next(self, state, char):
            nodes, begun = self._nodes, state
            while state and char not in nodes[state].children:
                state = nodes[state].fallback
                self.moves += 1
            self.moves += 1
            return super()._next(begun, char)

    cutter = Counted(["a" * 500 + "b"])
    for _ in range(100):
        cutter.push("a" * 100 + "c" * 10)
        cutter.push("a" * 100)
    assert cutter.moves <= 2 * 2 * 100 * 210


SOME_HIDDEN = st.lists(st.tuples(st.text("abc", max_size=4), st.booleans()), max_size=8)


def first_match_with_hidden(parts, stops):
    """By definition: the first end in the whole or in what is shown; the longest there. Hidden
    parts are in a stop string whole or not at all."""
    chars = [(c, h) for text, h in parts for c in text]
    inside, at = set(), 0
    for text, hidden in parts:
        inside |= set(range(at + 1, at + len(text))) if hidden else set()
        at += len(text)
    for end in range(1, len(chars) + 1):
        whole = [] if end in inside else list(range(end))
        shown = [i for i in range(end) if not chars[i][1]] if not chars[end - 1][1] else []
        found = [
            (len(s), places[len(places) - len(s)], s)
            for s in stops
            for places in (whole, shown)
            if "".join(chars[i][0] for i in places).endswith(s)
            and (places is shown or places[len(places) - len(s)] not in inside)
        ]
        if found:
            _, start, stop = max(found)
            return end, stop, start
    return None


@given(SOME_HIDDEN, STOPS, st.booleans())
def test_hidden_text_is_matched_and_not_shown(parts, stops, include):
    chars = [(char, hidden) for text, hidden in parts for char in text]
    cutter, got, stop = StopStrings(stops, include), "", None
    for text, hidden in parts:
        new, stop = cutter.push(text, hidden=hidden)
        got += new
        if stop is not None:
            break
    got += cutter.finish()
    wanted = first_match_with_hidden(parts, stops)
    if wanted is None:
        assert stop is None
        assert got == "".join(c for c, hidden in chars if not hidden)
        return
    end, word, start = wanted
    assert stop == word
    before = "".join(c for c, hidden in chars[:start] if not hidden)
    assert got == before + ("".join(c for c, _ in chars[start:end]) if include else "")
