"""Encoding beside other threads: a long text does not hold the interpreter."""

import threading
import time

from tests.unit.text import vocabularies

LONG = "the quick brown fox jumps over the lazy dog " * 5000


def test_another_thread_runs_while_a_long_text_is_encoded():
    tokenizer = vocabularies.byte_level()

    def runs_beside() -> bool:
        begun, times = threading.Event(), []

        def encode():
            begun.set()
            times.append(time.perf_counter())
            tokenizer.encode(LONG)
            times.append(time.perf_counter())

        thread = threading.Thread(target=encode)
        thread.start()
        begun.wait()
        woke = time.perf_counter()
        thread.join()
        return woke < sum(times) / 2

    assert sum(runs_beside() for _ in range(5)) >= 3


def test_a_long_text_has_the_ids_of_its_parts():
    tokenizer = vocabularies.byte_level()
    assert tokenizer.encode(LONG) == tokenizer.encode(LONG[:44]) * 5000
