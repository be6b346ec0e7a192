from collections import Counter

import numpy as np

from runtime.workbench.datasets import (
    Lengths,
    RandomDataset,
    SharedPrefixDataset,
    vocabulary_of,
)

VOCABULARY = list(range(3, 50))


def drawn(dataset, count, seed=0, vocabulary=VOCABULARY):
    return dataset.requests(count, vocabulary, np.random.default_rng(seed))


def test_random_prompts_have_the_lengths_asked_for():
    found = drawn(RandomDataset(Lengths(4, 9), Lengths(2, 3), {}), 200)
    assert {len(r.token_ids) for r in found} == set(range(4, 10))
    assert {r.sampling["max_tokens"] for r in found} == {2, 3}
    assert {i for r in found for i in r.token_ids} == set(VOCABULARY)
    assert all(r.sampling["ignore_eos"] and r.sampling["temperature"] == 0 for r in found)


def test_a_seed_gives_the_same_again_and_the_vocabulary_changes_no_length():
    dataset = RandomDataset(Lengths(1, 30), Lengths(1, 30), {})
    assert drawn(dataset, 5) == drawn(dataset, 5)
    assert drawn(dataset, 5) != drawn(dataset, 5, seed=1)
    others = drawn(dataset, 5, vocabulary=range(1000))
    assert [len(r.token_ids) for r in others] == [len(r.token_ids) for r in drawn(dataset, 5)]


def test_sampling_of_the_run_is_kept_but_not_the_length():
    sampling = {"temperature": 0.7, "top_k": 5, "max_tokens": 9, "ignore_eos": False}
    found = drawn(RandomDataset(Lengths(1, 1), Lengths(3, 3), sampling), 1)[0].sampling
    assert found == {"temperature": 0.7, "top_k": 5, "max_tokens": 3, "ignore_eos": True}


def test_shared_prefixes_serve_equally_many():
    rest = RandomDataset(Lengths(2, 4), Lengths(1, 1), {})
    found = drawn(SharedPrefixDataset(3, 20, rest), 30)
    prefixes = Counter(tuple(r.token_ids[:20]) for r in found)
    assert sorted(prefixes.values()) == [10, 10, 10]
    assert {len(r.token_ids) for r in found} == {22, 23, 24}
    assert len({tuple(r.token_ids[20:]) for r in found}) > 20, "what follows differs"


def test_the_vocabulary_ends_no_answer():
    assert vocabulary_of(6, (2, 4)) == [0, 1, 3, 5]


def test_lengths_in_words():
    assert (str(Lengths(5, 5)), str(Lengths(5, 9))) == ("5", "5-9")
