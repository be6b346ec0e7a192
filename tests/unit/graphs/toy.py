"""A small runner and model that use graphs as the runtime does, with switches that break it.

Each request has one block of MAX_LEN slots; block 0 is the null block and block 1 the trash block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from graphs import Call, Cut, GraphKey, Kind, run_in_place

VOCAB, HIDDEN, LAYERS, MAX_LEN = 50, 8, 2, 12


class Piece(NamedTuple):
    """One request's part of a step."""

    block: int
    """from 2 up"""
    token_ids: list[int]
    """this step's"""
    computed: int
    """tokens before this step"""


@dataclass
class Breaks:
    """Faults to be found, one at a time."""

    padding: bool = False
    """padding tokens keep what the buffers held before"""
    baked_int: bool = False
    """attention reads only as many keys as this step's longest request has"""
    stale_plan: bool = False
    """eager attention uses the plan of the capture"""
    replaced_buffer: bool = False
    """a buffer is made anew instead of being filled"""
    cached_tensor: bool = False
    """a table is made at first use and kept"""


@dataclass
class Plan:
    """What eager attention reads on the host."""

    pieces: list[Piece] = field(default_factory=list)


class ToyRunner:
    """Persistent buffers, a K/V cache, and a forward over them; float64, so that only real faults
    differ."""

    def __init__(self, max_tokens: int, num_blocks: int = 32, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64) * shape[-1] ** -0.5

        self.embedding = weights(VOCAB, HIDDEN)
        self.layers = [
            (weights(HIDDEN, 2 * HIDDEN), weights(HIDDEN, HIDDEN)) for _ in range(LAYERS)
        ]
        self.ids = torch.zeros(max_tokens, dtype=torch.int64)
        self.positions = torch.zeros(max_tokens, dtype=torch.int64)
        self.blocks = torch.zeros(max_tokens, dtype=torch.int64)
        """block that each token reads"""
        self.slots = torch.zeros(max_tokens, dtype=torch.int64)
        """where each token writes"""
        self.cache = torch.zeros(LAYERS, num_blocks, MAX_LEN, HIDDEN, dtype=torch.float64)
        self.plan = Plan()
        self.breaks = Breaks()
        self.num_keys = MAX_LEN
        self._table: Tensor | None = None

    def statics(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("ids", "positions", "blocks", "slots")}

    def fill(self, pieces: list[Piece], num_padded: int) -> None:
        """The step's tokens, then padding: id 0 at position 0, reading null, writing trash."""
        if self.breaks.replaced_buffer:
            self.ids = torch.zeros_like(self.ids)
        ids, positions, blocks, slots = [], [], [], []
        for piece in pieces:
            for offset, token in enumerate(piece.token_ids):
                ids.append(token)
                positions.append(piece.computed + offset)
                blocks.append(piece.block)
                slots.append(piece.block * MAX_LEN + piece.computed + offset)
        num_padding = 0 if self.breaks.padding else num_padded - len(ids)
        for buffer, values, pad in (
            (self.ids, ids, 0),
            (self.positions, positions, 0),
            (self.blocks, blocks, 0),
            (self.slots, slots, MAX_LEN),
        ):
            values += [pad] * num_padding
            buffer[: len(values)] = torch.tensor(values, dtype=torch.int64)
        self.plan.pieces = pieces
        longest = max((p.computed + len(p.token_ids) for p in pieces), default=1)
        self.num_keys = longest if self.breaks.baked_int else MAX_LEN

    def fill_dummy(self, num_padded: int) -> None:
        self.fill([], num_padded)

    def call(self, key: GraphKey) -> Call:
        """The forward of a key; attention is device-only in whole graphs, and planned on the host
        where it may be cut out."""
        captured_plan = Plan(list(self.plan.pieces))

        def attend_on_host(q: Tensor, layer: int, out: Tensor) -> None:
            plan = captured_plan if self.breaks.stale_plan else self.plan
            start = 0
            out.zero_()
            for piece in plan.pieces:
                for offset in range(len(piece.token_ids)):
                    keys = self.cache[layer, piece.block, : piece.computed + offset + 1]
                    weights = torch.softmax(keys @ q[start + offset], 0)
                    out[start + offset] = weights @ keys
                start += len(piece.token_ids)

        def forward(cut: Cut) -> Tensor:
            T = key.num_tokens
            hidden = self.embedding[self.ids[:T]]
            if self.breaks.cached_tensor:
                if self._table is None:
                    self._table = torch.arange(MAX_LEN) * 1.0
                hidden = hidden + self._table[self.positions[:T]].unsqueeze(1)
            for layer, (qk, output) in enumerate(self.layers):
                q, k = (hidden @ qk).chunk(2, dim=-1)
                self.cache[layer].view(-1, HIDDEN).index_copy_(0, self.slots[:T], k)
                out = torch.empty_like(hidden)
                if key.kind is Kind.SEGMENTED:
                    cut(attend_on_host, q, layer, out)
                else:
                    self._attend_on_device(T, q, layer, out)
                hidden = hidden + torch.tanh(out @ output)
            return hidden

        return forward

    def _attend_on_device(self, T: int, q: Tensor, layer: int, out: Tensor) -> None:
        keys = self.cache[layer, self.blocks[:T], : self.num_keys]
        scores = torch.einsum("th,tlh->tl", q, keys)
        is_hidden = torch.arange(self.num_keys) > self.positions[:T, None]
        weights = torch.softmax(scores.masked_fill(is_hidden, float("-inf")), 1)
        out.copy_(torch.einsum("tl,tlh->th", weights, keys))

    def exact(self, pieces: list[Piece]) -> Tensor:
        """The step alone at its exact size, on a copy of the cache; [real tokens, hidden]."""
        num_tokens = sum(len(piece.token_ids) for piece in pieces)
        twin = ToyRunner(max(num_tokens, 1), self.cache.shape[1])
        twin.cache.copy_(self.cache)
        twin.fill(pieces, num_tokens)
        return twin.call(GraphKey(Kind.EAGER, num_tokens, len(pieces)))(run_in_place)
