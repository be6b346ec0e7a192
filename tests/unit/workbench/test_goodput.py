import pytest

from runtime.errors import ConfigError
from runtime.workbench.goodput import num_good, parse_slos
from tests.unit.workbench.fakes import record


def test_limits_are_milliseconds():
    slos = parse_slos(["ttft:500", "tpot:0.5", "e2el:0"], "--goodput")
    assert slos == {"ttft": 500.0, "tpot": 0.5, "e2el": 0.0}
    assert parse_slos([], "--goodput") == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("itl:5", "names no metric; give NAME:MILLISECONDS with one of ttft, tpot, e2el"),
        ("TTFT:5", "names no metric"),
        ("", "names no metric"),
        ("ttft", "must be a number of milliseconds >= 0"),
        ("ttft:", "must be a number"),
        ("ttft:-1", "must be a number"),
        ("ttft:nan", "must be a number"),
        ("ttft:inf", "must be a number"),
        ("tpot:7", "tpot was given before"),
    ],
)
def test_what_is_no_limit(word, message):
    with pytest.raises(ConfigError, match=f"^--goodput {word}: {message}"):
        parse_slos(["tpot:3", word], "--goodput")


def test_a_request_keeps_every_limit_or_is_not_good():
    done = [record(ttft_s=1.0, itl_s=(0.5,)), record(ttft_s=0.1)]
    assert num_good(done, {"ttft": 1000, "tpot": 500, "e2el": 1500}) == 2
    assert num_good(done, {"ttft": 1000, "tpot": 499}) == 1, "one token has no TPOT"
    assert num_good(done, {"ttft": 99}) == 0
