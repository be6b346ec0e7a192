"""Makes samplers and rows for the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.data.params import SamplingParams
from runtime.data.step import NewRow
from runtime.sampling import Sampler, SamplerOutput


class Bench:
    """A sampler whose row i holds request i with `params[i]`, and the matrix of known tokens."""

    def __init__(
        self,
        params: Sequence[SamplingParams],
        vocab_size: int,
        *,
        prompts: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[Sequence[int]] | None = None,
        max_len: int = 64,
        eos: tuple[int, ...] = (0,),
        rows: Sequence[int] | None = None,
        **kwargs: object,
    ) -> None:
        n = len(params)
        self.rows = np.array(range(n) if rows is None else rows, np.int32)
        self.token_ids = np.zeros((int(self.rows.max()) + 1, max_len), np.int32)
        self.num_tokens = np.zeros(n, np.int32)
        self.sampler = Sampler(vocab_size, self.token_ids, "cpu", **kwargs)
        for i, p in enumerate(params):
            prompt = list(prompts[i]) if prompts else [1, 2, 3]
            self.enter(i, p, prompt, list(outputs[i]) if outputs else [], eos)

    def enter(
        self, i: int, p: SamplingParams, prompt: list[int], output: list[int], eos: tuple[int, ...]
    ) -> None:
        known, row = prompt + output, int(self.rows[i])
        self.token_ids[row, : len(known)] = known
        self.num_tokens[i] = len(known)
        self.sampler.add(NewRow(row, f"r{i}", known, len(prompt), 0, [], p, eos))

    def sample(self, logits: torch.Tensor, order: Sequence[int] | None = None) -> SamplerOutput:
        """Sample the requests `order` (all) with their rows of `logits`; nothing is appended."""
        pick = np.arange(len(self.rows)) if order is None else np.array(order, np.intp)
        self.sampler.prepare(self.rows[pick], self.num_tokens[pick])
        return self.sampler.sample(logits[pick], self.rows[pick], self.num_tokens[pick])

    def step(self, logits: torch.Tensor, order: Sequence[int] | None = None) -> list[int]:
        """Sample and append, as the runner does."""
        pick = np.arange(len(self.rows)) if order is None else np.array(order, np.intp)
        out = self.sample(logits, order)
        assert not out.errors, out.errors
        self.token_ids[self.rows[pick], self.num_tokens[pick]] = out.token_ids
        self.num_tokens[pick] += 1
        return out.token_ids.tolist()


class ByteTokenizer:
    """A byte-level vocabulary: EOS 0, the 256 bytes, and some merges; ids 0..N-1."""

    eos = 0

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {"<eos>": 0, **{piece: i for i, piece in enumerate(alphabet, 1)}}
        merges = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("Ġa", "b"), ("t", "r"), ("u", "e")]
        for left, right in merges:
            vocab[left + right] = len(vocab)
        self.backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens(["<eos>"])
        self.vocab_size = self.num_ids = self.backend.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int]) -> str:
        return self.backend.decode(ids, skip_special_tokens=True)
