"""Which keys each query row of a step sees: slots to gather and masks, for `torch_paged`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attention_backends._interface import AttentionBatch

TILE_ROWS = 256
"""Query rows of a chunk that share one mask; keys after a tile's last row are not read for it."""
MAX_GROUP_KEYS = 8192
"""Gathered keys of one batch of one-token requests: more than that falls out of a CPU's cache."""
SIMILAR = 0.75
"""Requests are batched with ones at most this much shorter, so padding stays below a quarter."""


class MaskKind(NamedTuple):
    """What the masks of a layer depend on."""

    window: int | None
    dtype: torch.dtype


@dataclass(slots=True)
class OneTokenRows:
    """G requests with one query token each, padded to L keys by repeating the last key, masked."""

    tokens: Tensor
    """[G] int64, index into T of each request's token."""
    slots: Tensor
    """[G * L] int64."""
    mask: Tensor
    """[G, 1, 1, L], 0 or -inf."""


@dataclass(slots=True)
class Chunk:
    """One request with several query tokens; its keys are `slots`, all of them real."""

    start: int
    """First token of the chunk, index into T."""
    slots: Tensor
    """[L] int64."""
    tiles: list[Tile]


class Tile(NamedTuple):
    """Some query rows of a chunk and the keys that they may see."""

    first_row: int
    end_row: int
    first_key: int
    end_key: int
    mask: Tensor
    """[rows, keys], 0 or -inf."""


class KeyPlanner:
    """Makes the parts of a step's plan; keeps the masks that steps share."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device
        self._bands: dict[MaskKind, Tensor] = {}

    def one_token_rows(
        self, batch: AttentionBatch, requests: np.ndarray, kind: MaskKind
    ) -> OneTokenRows:
        longest = int(batch.seq_lens_cpu[requests].max())
        num_keys = longest if kind.window is None else min(longest, kind.window)
        index = torch.from_numpy(requests).to(self._device)
        return self._padded_keys(
            batch.query_start_loc[index].long(),
            batch.seq_lens[index].long(),
            batch.block_table[index],
            num_keys,
            kind,
        )

    def bucket_rows(self, batch: AttentionBatch, num_keys: int, kind: MaskKind) -> OneTokenRows:
        return self._padded_keys(
            batch.query_start_loc[:-1].long(),
            batch.seq_lens.long(),
            batch.block_table,
            num_keys,
            kind,
        )

    def _padded_keys(
        self, tokens: Tensor, seq_lens: Tensor, table: Tensor, num_keys: int, kind: MaskKind
    ) -> OneTokenRows:
        """The last `num_keys` keys of each request; where it has fewer, its last key again."""
        first = torch.zeros_like(seq_lens)
        if kind.window is not None:
            first = (seq_lens - kind.window).clamp_(min=0)
        positions = first[:, None] + torch.arange(num_keys, device=self._device)
        is_key = positions < seq_lens[:, None]
        positions = torch.minimum(positions, seq_lens[:, None] - 1)
        blocks = table.gather(1, positions // self._block_size).long()
        slots = blocks * self._block_size + positions % self._block_size
        mask = torch.zeros(is_key.shape, dtype=kind.dtype, device=self._device)
        mask.masked_fill_(~is_key, float("-inf"))
        return OneTokenRows(tokens, slots.flatten(), mask[:, None, None, :])

    def chunk(
        self, batch: AttentionBatch, request: int, start: int, query_len: int, kind: MaskKind
    ) -> Chunk:
        seq_len = int(batch.seq_lens_cpu[request])
        computed = seq_len - query_len
        first_key = _first_visible(computed, kind.window)
        positions = np.arange(first_key, seq_len)
        blocks = batch.block_table_cpu[request, positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size
        tiles = []
        for row in range(0, query_len, TILE_ROWS):
            end_row = min(row + TILE_ROWS, query_len)
            low, high = _first_visible(computed + row, kind.window), computed + end_row
            mask = self._causal_mask(end_row - row, high - low, kind)
            tiles.append(Tile(row, end_row, low - first_key, high - first_key, mask))
        return Chunk(start, torch.from_numpy(slots).to(self._device), tiles)

    def _causal_mask(self, num_rows: int, num_keys: int, kind: MaskKind) -> Tensor:
        """[num_rows, num_keys], bottom-right aligned: a part of one band, which is kept, since a
        key's visibility depends only on its distance from the row."""
        context = num_keys - num_rows
        band = self._bands.get(kind)
        if band is None or band.shape[1] - TILE_ROWS < context:
            size = 1 << max(context, TILE_ROWS).bit_length()
            band = self._bands[kind] = _band(size, kind, self._device)
        zero = band.shape[1] - TILE_ROWS
        return band[:num_rows, zero - context : zero + num_rows]


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _band(context: int, kind: MaskKind, device: torch.device) -> Tensor:
    """[TILE_ROWS, context + TILE_ROWS]; column context + i is row i's own key."""
    rows = torch.arange(TILE_ROWS, device=device)[:, None]
    distance = rows - torch.arange(-context, TILE_ROWS, device=device)
    hidden = distance < 0
    if kind.window is not None:
        hidden |= distance >= kind.window
    band = torch.zeros(hidden.shape, dtype=kind.dtype, device=device)
    return band.masked_fill_(hidden, float("-inf"))


def group_by_length(
    seq_lens: np.ndarray, requests: np.ndarray, window: int | None
) -> list[np.ndarray]:
    """Split one-token requests into groups of similar numbers of visible keys, longest first."""
    lens = seq_lens[requests] if window is None else np.minimum(seq_lens[requests], window)
    order = np.argsort(-lens, kind="stable")
    requests, lens = requests[order], lens[order]
    groups, start = [], 0
    while start < len(requests):
        longest = int(lens[start])
        similar = int(np.searchsorted(-lens, -longest * SIMILAR, side="right"))
        end = min(max(similar, start + 1), start + max(1, MAX_GROUP_KEYS // longest))
        groups.append(requests[start:end])
        start = end
    return groups
