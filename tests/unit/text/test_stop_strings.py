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
    """The automaton takes at most two moves a character, however the stop string repeats."""

    class Counted(StopStrings):
        moves = 0

        def _next(self, char):
            nodes, state = self._nodes, self._state
            while state and char not in nodes[state].children:
                state = nodes[state].fallback
                self.moves += 1
            self.moves += 1
            return super()._next(char)

    cutter = Counted(["a" * 500 + "b"])
    for _ in range(100):
        cutter.push("a" * 100 + "c" * 10)
        cutter.push("a" * 100)
    assert cutter.moves <= 2 * 100 * 210
