"""Counter-based noise: one uniform number per (seed, position), on any device, in any batch."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

U64Array = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(state: U64Array, index: U64Array) -> U64Array:
    """Output number `index` (from 0) of SplitMix64 started at `state`, elementwise.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = state + (index + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def stream_of_seed(seed: int) -> int:
    """Where the stream of a seed starts. Scrambled, so that near seeds give unrelated streams."""
    return int(splitmix64(np.array([seed], np.uint64), np.zeros(1, np.uint64))[0])


def uniform(streams: U64Array, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """[S] streams and positions -> [S] float64 in (0, 1), on a grid of 2**-48.

    The grid is coarser than a double, so that `u * total < total` for every positive total.
    """
    bits = splitmix64(streams, positions.astype(np.uint64)) >> np.uint64(17)
    return (bits | np.uint64(1)).astype(np.float64) * 2.0**-47


def seed_of_text(text: str) -> int:
    """A seed in [0, 2**63) from any text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
