"""Prompts of a benchmark that are drawn: token ids at random, with or without shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtime.config import RequestConfig

IntArray = npt.NDArray[np.int64]


class Lengths(NamedTuple):
    """Tokens, drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        return rng.integers(self.low, self.high, count, endpoint=True)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


class Dataset(Protocol):
    """Where requests come from."""

    @property
    def name(self) -> str: ...

    def requests(
        self, count: int, vocabulary: Sequence[int], rng: np.random.Generator
    ) -> list[RequestConfig]:
        """The first `count` requests.

        Args:
            vocabulary: the token ids that prompts are drawn from.
        """


def vocabulary_of(vocab_size: int, eos_token_ids: Sequence[int]) -> list[int]:
    """The token ids that prompts are drawn from: all but those that end an answer."""
    return sorted(set(range(vocab_size)) - set(eos_token_ids))


def exactly(num_tokens: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling fields of an answer of just this length."""
    return {"temperature": 0.0, **sampling, "max_tokens": num_tokens, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class RandomDataset:
    """Prompts of random token ids, answers of given lengths."""

    input_len: Lengths
    output_len: Lengths
    sampling: Mapping[str, Any]
    """Fields of every request; greedy where there is no temperature."""
    name: str = "random"

    def requests(
        self, count: int, vocabulary: Sequence[int], rng: np.random.Generator
    ) -> list[RequestConfig]:
        """See Dataset. Lengths are drawn before tokens: the vocabulary does not change them."""
        inputs, outputs = self.input_len.draw(count, rng), self.output_len.draw(count, rng)
        return [
            RequestConfig(
                token_ids=rng.choice(vocabulary, length).tolist(),
                sampling=exactly(int(tokens), self.sampling),
            )
            for length, tokens in zip(inputs, outputs, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SharedPrefixDataset:
    """Random prompts, each behind one of a few long prefixes, as system prompts are."""

    num_prefixes: int
    prefix_len: int
    rest: RandomDataset
    """What follows a prefix, and the answers."""
    name: str = "shared-prefix"

    def requests(
        self, count: int, vocabulary: Sequence[int], rng: np.random.Generator
    ) -> list[RequestConfig]:
        """See Dataset. Each prefix serves as many requests as another, in random order."""
        prefixes = rng.choice(vocabulary, (self.num_prefixes, self.prefix_len)).tolist()
        chosen = rng.permutation(np.arange(count) % self.num_prefixes)
        behind = self.rest.requests(count, vocabulary, rng)
        return [
            request.model_copy(update={"token_ids": prefixes[which] + (request.token_ids or [])})
            for which, request in zip(chosen, behind, strict=True)
        ]
