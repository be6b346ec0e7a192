"""The contract of an attention backend, and the one legend of shapes.

Shapes: T tokens of the step (padded), R request rows (padded), S sampled rows, Hq/Hkv query/key-
value heads, D head dim, N blocks of the pool, P block size (tokens), M max blocks per request.

A backend knows arrays, never requests. K/V are written by one shared op before `attend` runs, never
by a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NULL_BLOCK = 0
"""All zeros, never written: unused block-table entries and padding requests read it."""

TRASH_BLOCK = 1
"""Padding tokens write here."""

NUM_RESERVED_BLOCKS = 2

IntArray = npt.NDArray[np.int32]


class GraphSupport(IntEnum):
    """What a backend's `attend` may be captured in."""

    NONE = 0
    """Must run outside any captured region."""
    ONE_TOKEN = 1
    """If every request has exactly one query token."""
    UNIFORM = 2
    """If every request has the same number of query tokens."""

    RAGGED = 3
    """Any query lengths, empty requests included."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What an attention layer asks for; layers of equal shape share a plan."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float
    window: int | None = None
    """Sliding window in tokens, the token itself included (Hugging Face's `sliding_window`); None
    is full."""
    softcap: float = 0.0
    """Tanh soft cap of the scores; 0 is off."""


@dataclass(frozen=True, slots=True)
class Support:
    """A backend's answer to `examine`: able, or the reason why not."""

    ok: bool
    reason: str = ""
    graph: GraphSupport = GraphSupport.NONE
    block_size_multiple: int = 1
    preferred_block_size: int = 16
    """Told as well where the refused thing is the block size."""
    host_plan: bool = False
    """Needs the host arrays each step (FlashInfer, CPU)"""
    bucketed_kv: bool = False
    """The baked KV bound hurts speed, so graph keys carry a kv class (FA2)"""


class LayerKV(NamedTuple):
    """K and V of one layer, each [N, P, Hkv, D]; strides are the backend's choice, equal for
    both."""

    k: Tensor
    v: Tensor


@dataclass(slots=True)
class AttentionBatch:
    """One step's attention inputs, already padded.

    Device tensors may be views of persistent buffers.

    Request r covers tokens query_start_loc[r] .. query_start_loc[r+1]; its keys are the first
    seq_lens[r] tokens of the blocks block_table[r]; causal, bottom-right aligned: its last query
    token sees all seq_lens[r] keys. query_start_loc[R] == T always (a tail request covers padding
    tokens). Rows with no query have seq_len 0.
    """

    num_tokens: int
    """Real tokens."""

    num_reqs: int
    """Real requests."""

    query_start_loc: Tensor
    """[R+1] int32."""

    seq_lens: Tensor
    """[R] int32, this step's tokens included."""
    block_table: Tensor
    """[R, M] int32; unused entries are NULL_BLOCK."""

    slot_mapping: Tensor
    """[T] int64: block id * P + offset; padding tokens go to TRASH_BLOCK."""

    query_start_loc_cpu: IntArray
    seq_lens_cpu: IntArray
    block_table_cpu: IntArray
    max_query_len: int
    max_seq_len: int


class Bucket(NamedTuple):
    """The padded sizes that a graph is captured for."""

    kind: str
    num_tokens: int
    num_reqs: int
    kv_class: int = 0
    """Upper bound of seq_lens where the backend's graphs bake one; 0 where not."""


Plan = Any
"""A backend's own metadata of one step."""


class AttentionBackend(Protocol):
    """One attention implementation.

    A file of this package exports its class as `Backend`.
    """

    name: ClassVar[str]

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        """`shapes[i]` is layer i's, and each was examined."""

    @classmethod
    def preference(cls, device: torch.device) -> int:
        """`auto` asks from the highest down, and takes the first that is able; the reference has
        0."""

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        """Say whether this backend can serve the shape here; never raises.

        A kernel library is imported here, once the chip is known to be its own, and never at module
        import: one that cannot be loaded, or takes other arguments than ours, is a reason.
        """

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        """Zeroed K/V of every layer, [N, P, Hkv, D] each, in one allocation where possible."""

    def plan(self, batch: AttentionBatch) -> Plan:
        """Once per step, outside captured regions; host work and syncs are allowed."""

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: Plan) -> None:
        """Write attention of q [T, Hq, D] into out [T, Hq, D].

        Launches only, never syncs. Rows of padding tokens get finite values.
        """

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        """Allocate every static buffer that the buckets need; returns bytes."""

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> Plan:
        """A plan with static addresses and worst-case baked ints for capture; `batch` is a legal
        dummy."""

    def refresh(self, plan: Plan, batch: AttentionBatch) -> None:
        """Before a replay, in place: same addresses, same baked ints."""
