"""Paged attention by our own Triton kernels: any mix of chunks and decodes, captured or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from attention_backends._chip import is_installed, num_multiprocessors, refuse_chip
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
)
from attention_backends._kernel_library import Call, Library, open_library
from attention_backends._nhd import DeviceArrays, allocate_kv, group_shapes, query_lens
from attention_backends._triton_tiles import (
    constants,
    decode_tiles,
    group_of,
    power_of_two,
    ragged_tiles,
    reduce_constants,
)

LIBRARY = Library(
    "attention_backends._triton_kernels",
    ("triton",),
    "triton 3.2 or newer",
    (Call("tl.dot", ("input", "other", "input_precision")),),
)
"""Our kernels, whose import is triton's."""
MAX_HEAD_DIM = 256
MAX_GROUP = 64
MAX_SPLITS = 32
MIN_SPLIT_TOKENS = 128
"""A split of fewer keys costs more to join than it saves."""
PROGRAMS_PER_MULTIPROCESSOR = 4
"""Decode programs to aim at, so that rows of unequal length even out."""


@dataclass(slots=True)
class ShapeLaunch:
    """Grids of one attention shape in one step; a captured graph freezes them."""

    num_tiles: int
    """programs of `ragged` per K/V head; 0 where no request has several query tokens"""
    num_splits: int
    """splits of `decode`; 0 where no request has one query token"""
    partial: Tensor
    """[R * Hq * splits * D] float32, and the log-sum-exps behind it"""
    lse: Tensor


@dataclass(slots=True)
class TritonPlan:
    arrays: DeviceArrays
    num_reqs: int
    launches: list[ShapeLaunch]
    """one per distinct shape"""


class Backend:
    """See `AttentionBackend`. Grids depend on padded sizes alone: one graph serves any lengths."""

    name: ClassVar[str] = "triton_paged"

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        """Raises ValueError with the reason where `examine` refuses a shape."""
        for shape in dict.fromkeys(shapes):
            support = self.examine(shape, block_size, device)
            if not support.ok:
                raise ValueError(f"triton_paged: {support.reason}")
        self._layers = list(shapes)
        self._shapes, self._shape_of_layer = group_shapes(shapes)
        self._block_size = block_size
        self._device = device
        self._num_multiprocessors = num_multiprocessors(device)
        self._reserved = torch.empty(0, dtype=torch.float32, device=device)
        self._eager = self._reserved

    @classmethod
    def preference(cls, device: torch.device) -> int:
        return 10

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        reason = _refuse(shape, block_size, device)
        return Support(ok=not reason, reason=reason, graph=GraphSupport.RAGGED)

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        return allocate_kv(self._layers, num_blocks, self._block_size, self._device)

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        lens = query_lens(batch)
        has_one, has_more = bool((lens == 1).any()), bool((lens > 1).any())
        num_tokens = int(batch.query_start_loc_cpu[-1])
        needed = self._workspace_size(len(lens)) if has_one else 0
        if needed > max(self._reserved.numel(), self._eager.numel()):
            self._eager = torch.empty(needed, dtype=torch.float32, device=self._device)
        space = max(self._reserved, self._eager, key=Tensor.numel)
        return self._lay_out(batch, num_tokens, space, has_one, has_more)

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        needed = max((self._workspace_size(bucket.num_reqs) for bucket in buckets), default=0)
        self._reserved = torch.empty(needed, dtype=torch.float32, device=self._device)
        return self._reserved.nbytes

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> TritonPlan:
        """Raises ValueError where `reserve` was not told of the bucket."""
        if self._workspace_size(bucket.num_reqs) > self._reserved.numel():
            raise ValueError(f"triton_paged: {bucket} was not reserved")
        only_one = bucket.num_tokens == bucket.num_reqs and bucket.kind == "decode"
        return self._lay_out(batch, bucket.num_tokens, self._reserved, True, not only_one)

    def refresh(self, plan: TritonPlan, batch: AttentionBatch) -> None:
        plan.arrays.load(batch)

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: TritonPlan) -> None:
        assert kv.k.stride() == kv.v.stride()
        assert kv.k.stride(3) == q.stride(2) == out.stride(2) == 1
        index = self._shape_of_layer[layer]
        shape, launch = self._shapes[index], plan.launches[index]
        if launch.num_tiles:
            self._run_ragged(shape, launch, q, kv, out, plan)
        if launch.num_splits:
            self._run_decode(shape, launch, q, kv, out, plan)

    def _lay_out(
        self,
        batch: AttentionBatch,
        num_tokens: int,
        space: Tensor,
        has_one: bool,
        has_more: bool,
    ) -> TritonPlan:
        num_reqs = batch.seq_lens.shape[0]
        launches = []
        for shape in self._shapes:
            splits = self._num_splits(shape, num_reqs) if has_one else 0
            places = num_reqs * shape.num_q_heads * splits if splits > 1 else 0
            partial, lse = space[: places * shape.head_dim], space[places * shape.head_dim :]
            tokens_per_tile = ragged_tiles(shape).rows // group_of(shape)
            num_tiles = num_tokens // tokens_per_tile + num_reqs if has_more else 0
            launches.append(ShapeLaunch(num_tiles, splits, partial, lse[:places]))
        return TritonPlan(DeviceArrays.of(batch), num_reqs, launches)

    def _num_splits(self, shape: AttentionShape, num_reqs: int) -> int:
        """Into how many parts the keys of one-token requests are split.

        The same for every count that one decode bucket serves, so that a step gives the same bits
        padded and not.
        """
        rows = power_of_two(num_reqs) * shape.num_kv_heads
        wanted = PROGRAMS_PER_MULTIPROCESSOR * self._num_multiprocessors // rows
        return min(MAX_SPLITS, power_of_two(wanted + 1) // 2) or 1

    def _workspace_size(self, num_reqs: int) -> int:
        """float32 numbers that `decode` and `reduce` pass between them; layers take turns."""
        sizes = [0]
        for shape in self._shapes:
            splits = self._num_splits(shape, num_reqs)
            if splits > 1:
                sizes.append(num_reqs * shape.num_q_heads * splits * (shape.head_dim + 1))
        return max(sizes)

    def _run_ragged(
        self,
        shape: AttentionShape,
        launch: ShapeLaunch,
        q: Tensor,
        kv: LayerKV,
        out: Tensor,
        plan: TritonPlan,
    ) -> None:
        arrays, tiles = plan.arrays, ragged_tiles(shape)
        operands = (
            q,
            kv.k,
            kv.v,
            out,
            arrays.query_start_loc,
            arrays.seq_lens,
            arrays.block_table,
            plan.num_reqs,
            arrays.block_table.shape[1],
            shape.scale,
            *q.stride()[:2],
            *out.stride()[:2],
            *kv.k.stride()[:3],
            arrays.block_table.stride(0),
        )
        grid = (launch.num_tiles, shape.num_kv_heads)
        _launch("ragged", grid, operands, constants(shape, self._block_size, tiles))

    def _run_decode(
        self,
        shape: AttentionShape,
        launch: ShapeLaunch,
        q: Tensor,
        kv: LayerKV,
        out: Tensor,
        plan: TritonPlan,
    ) -> None:
        arrays, tiles = plan.arrays, decode_tiles(shape)
        max_blocks = arrays.block_table.shape[1]
        split = {"SPLITS": launch.num_splits, "MIN_TILES": max(1, MIN_SPLIT_TOKENS // tiles.keys)}
        operands = (
            q,
            kv.k,
            kv.v,
            out,
            launch.partial,
            launch.lse,
            arrays.query_start_loc,
            arrays.seq_lens,
            arrays.block_table,
            max_blocks,
            shape.scale,
            *q.stride()[:2],
            *out.stride()[:2],
            *kv.k.stride()[:3],
            arrays.block_table.stride(0),
        )
        grid = (plan.num_reqs, shape.num_kv_heads, launch.num_splits)
        _launch("decode", grid, operands, {**constants(shape, self._block_size, tiles), **split})
        if launch.num_splits == 1:
            return
        operands = (
            launch.partial,
            launch.lse,
            out,
            arrays.query_start_loc,
            arrays.seq_lens,
            max_blocks,
            *out.stride()[:2],
        )
        grid = (plan.num_reqs, shape.num_q_heads)
        _launch("reduce", grid, operands, {**reduce_constants(shape, self._block_size), **split})


@wrap_torch_function(lambda name, grid, operands, _: [x for x in operands if isinstance(x, Tensor)])
def _launch(
    name: str, grid: tuple[int, ...], operands: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    """Every launch, as a torch function mode sees it: a recorder of captures may keep the call."""
    from attention_backends import _triton_kernels

    getattr(_triton_kernels, name)[grid](*operands, **constants)


def _refuse(shape: AttentionShape, block_size: int, device: torch.device) -> str:
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs an NVIDIA GPU; the CPU runs it only with TRITON_INTERPRET=1, for tests"
    if not is_installed("triton"):
        return "triton is not installed: pip install triton (Linux; PyTorch's CUDA wheels bring it)"
    if device.type == "cpu":
        if shape.dtype == torch.bfloat16:
            return "Triton's interpreter multiplies the bits of bfloat16: take float32 or float16"
    elif reason := refuse_chip(device):
        return reason
    if shape.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"dtype {shape.dtype} is not supported: float16, bfloat16 or float32"
    if shape.kv_dtype != shape.dtype:
        return f"the cache must hold the model's {shape.dtype}, not {shape.kv_dtype}"
    if shape.head_dim > MAX_HEAD_DIM:
        return f"head_dim {shape.head_dim} is above {MAX_HEAD_DIM}"
    if shape.num_q_heads % shape.num_kv_heads:
        return f"{shape.num_q_heads} query heads do not divide among {shape.num_kv_heads} K/V heads"
    if group_of(shape) > MAX_GROUP:
        return f"{group_of(shape)} query heads share a K/V head: at most {MAX_GROUP}"
    if block_size < 1 or block_size & (block_size - 1):
        return f"block size {block_size} is not a power of two"
    return open_library(LIBRARY).reason
