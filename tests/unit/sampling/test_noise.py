"""The noise: the generator's published values, and uniformity over seeds and positions."""

from __future__ import annotations

import numpy as np

from runtime.sampling.noise import seed_of_text, splitmix64, stream_of_seed, uniform


def test_splitmix64_gives_its_published_values():
    state = np.full(5, 1234567, np.uint64)
    want = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(state, np.arange(5, dtype=np.uint64)).tolist() == want


def test_uniform_over_positions_and_over_near_seeds():
    n = 20_000
    one = np.full(n, stream_of_seed(5), np.uint64)
    many = np.array([stream_of_seed(s) for s in range(n)], np.uint64)
    for streams, positions in ((one, np.arange(n)), (many, np.full(n, 7))):
        u = uniform(streams, positions)
        counts = np.histogram(u, 100, (0, 1))[0]
        chi_square = ((counts - n / 100) ** 2 / (n / 100)).sum()
        assert 50 < chi_square < 165  # 99 degrees of freedom, about five sigma
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / n**0.5
        assert u.min() > 0
        assert u.max() < 1


def test_uniform_stays_under_one_when_scaled():
    u = 1 - 2.0**-48
    assert all(u * total < total for total in (1e-300, 0.1, 1.0, 3.7, 1e300))


def test_seed_of_text_is_stable():
    assert seed_of_text("req-0") == seed_of_text("req-0") != seed_of_text("req-1")
    assert 0 <= seed_of_text("req-0") < 2**63
