"""Paged attention on the CPU in C++, for any mix of chunks and decodes in one call.

The kernel is `_native/attention/`: AMX, AVX-512, AVX2 or portable, as the machine has them. K and V
are widened to float32 once for a tile of queries, or, where there are few, as they are read; with
AMX, tiles multiply bf16. What a row gets does not depend on what else is in the batch (not so with
AMX), on the number of threads, or on how its prompt was cut into chunks: sums are taken over chunks
of keys at fixed positions, in order. The twin is `torch_paged`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from attention_backends._host_memory import lazy_zeros
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
)
from attention_backends._native import (
    NativeBuildError,
    NativeKernel,
    NativeLibrary,
    NativeSource,
    launch,
    load_library,
)
from attention_backends._native.attention_args import (
    CHUNK_KEYS,
    DTYPES,
    HEADER_WORDS,
    ITEM_FIELDS,
    MERGE_FIELDS,
    TILE_ROWS,
    AttendArgs,
    PlanArgs,
    PlanHeader,
)

_FOLDER = Path(__file__).parent / "_native" / "attention"
SOURCE = NativeSource("attention", (_FOLDER / "plan.cpp", _FOLDER / "attend.cpp"))
MAX_HEAD_DIM = 512
SPLITS_PER_THREAD = 8
"""Bounds the pieces that long items are cut into, and the items that small tiles make more of; the
planner aims at half of it."""
MIN_PARTIAL_ROWS = 4096


class WorkKind(NamedTuple):
    """What the work of a layer depends on; layers of one kind share a plan."""

    window: int
    """0 is none."""
    num_kv_heads: int
    group: int
    """Query heads of a K/V head."""


class Work:
    """The items of one kind of layer, at addresses that stay.

    Attributes:
        memory: the header, then all else; what a captured call is given.
        header: its first bytes.
    """

    def __init__(self, max_items: int, max_merges: int, max_partial_rows: int) -> None:
        words = HEADER_WORDS + max_items * ITEM_FIELDS + max_merges * MERGE_FIELDS
        self.memory = torch.zeros(words, dtype=torch.int32)
        address = self.memory.data_ptr()
        self.header = PlanHeader.from_address(address)
        self.header.max_items, self.header.max_merges = max_items, max_merges
        self.header.max_partial_rows = max_partial_rows
        self.header.items = address + 4 * HEADER_WORDS
        self.header.merges = self.header.items + 4 * max_items * ITEM_FIELDS


@dataclass(slots=True)
class StepPlan:
    """One step's work, or one bucket's, which `refresh` fills anew in place."""

    work: dict[WorkKind, Work]
    block_table: Tensor
    """[R, M] int32"""
    partials: Tensor
    """Results of items that are split over their keys, float32."""


class Backend:
    """See `AttentionBackend`."""

    name: ClassVar[str] = "cpu_native"

    def __init__(
        self,
        shapes: Sequence[AttentionShape],
        block_size: int,
        device: torch.device,
        isa: str | None = None,
    ) -> None:
        """`isa` is a name of `able_isas()`; None is the best here."""
        self._shapes = list(shapes)
        self._kinds = [_kind_of(shape) for shape in shapes]
        self._block_size = block_size
        self._device = device
        self._num_threads = torch.get_num_threads()
        library = load_library(SOURCE, isa)
        self.isa = library.isa
        self._kernel = library.kernel("stepgraph_attention")
        self._plan = _planner(library)
        self._row_floats = max(shape.head_dim for shape in shapes) + 2
        self._partials = torch.empty(0)
        self._max_model_len = 0
        self._workspace, workspace_bytes = self._allocate_workspace(library)
        self._templates = [
            self._template(shape, kind, workspace_bytes)
            for shape, kind in zip(self._shapes, self._kinds, strict=True)
        ]

    @classmethod
    def preference(cls, device: torch.device) -> int:
        return 10

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        reason = _refusal(shape, block_size, device)
        if not reason:
            try:
                load_library(SOURCE)
            except NativeBuildError as error:
                reason = str(error)
        if reason:
            return Support(False, reason)
        return Support(True, graph=GraphSupport.RAGGED, host_plan=True)

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        """Views [N, P, Hkv, D] of memory [N, Hkv, P, D], so that a head's keys are together."""
        return [self._allocate_layer(shape, num_blocks) for shape in self._shapes]

    def plan(self, batch: AttentionBatch) -> StepPlan:
        starts = batch.query_start_loc_cpu
        query_lens = np.diff(starts[: batch.num_reqs + 1])
        work = {}
        for kind in dict.fromkeys(self._kinds):
            num_tiles = int((-(-query_lens // _tile_tokens(kind))).sum())
            work[kind] = self._new_work(kind, num_tiles, batch.max_seq_len)
        plan = StepPlan(work, batch.block_table, self._partials)
        self._fill(plan, batch)
        return plan

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: StepPlan) -> None:
        _attend(
            self._kernel.address,
            self._templates[layer],
            q if q.stride(2) == 1 else q.contiguous(),
            out,
            kv.k,
            kv.v,
            plan.work[self._kinds[layer]].memory,
            plan.block_table,
            plan.partials,
            self._workspace,
            self._num_threads,
        )

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        """Partial results; the rest is made by `open_bucket`, and counted here."""
        self._max_model_len = max_model_len
        num_bytes = 0
        for bucket in buckets:
            for kind in dict.fromkeys(self._kinds):
                work = self._new_work(kind, _most_tiles(bucket, kind), max_model_len)
                num_bytes += work.memory.nbytes
        return num_bytes + self._partials.nbytes

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> StepPlan:
        work = {
            kind: self._new_work(kind, _most_tiles(bucket, kind), self._max_model_len)
            for kind in dict.fromkeys(self._kinds)
        }
        plan = StepPlan(work, batch.block_table, self._partials)
        self._fill(plan, batch)
        return plan

    def refresh(self, plan: StepPlan, batch: AttentionBatch) -> None:
        """Raises ValueError where the step is larger than the plan's bucket."""
        table, static = batch.block_table, plan.block_table
        if table.shape != static.shape:
            raise ValueError(
                f"cpu_native: a step must be padded to its bucket: block_table is "
                f"{list(table.shape)}, the bucket has {list(static.shape)}"
            )
        if table.data_ptr() != static.data_ptr():
            static.copy_(table)
        self._fill(plan, batch)

    def _fill(self, plan: StepPlan, batch: AttentionBatch) -> None:
        starts = np.ascontiguousarray(batch.query_start_loc_cpu, np.int32)
        seq_lens = np.ascontiguousarray(batch.seq_lens_cpu, np.int32)
        for kind, work in plan.work.items():
            args = PlanArgs(
                plan=ctypes.addressof(work.header),
                query_start_loc=starts.ctypes.data,
                seq_lens=seq_lens.ctypes.data,
                num_reqs=batch.num_reqs,
                num_kv_heads=kind.num_kv_heads,
                group=kind.group,
                window=kind.window,
                num_threads=self._num_threads,
            )
            if not self._plan(ctypes.byref(args)):
                raise ValueError(
                    f"cpu_native: a step of {batch.num_tokens} tokens in {batch.num_reqs} requests "
                    f"is larger than its bucket ({work.header.max_items} items of work)"
                )

    def _new_work(self, kind: WorkKind, num_tiles: int, max_seq_len: int) -> Work:
        num_splits = SPLITS_PER_THREAD * self._num_threads
        max_items = num_tiles * kind.num_kv_heads + num_splits
        num_chunks = -(-max_seq_len // CHUNK_KEYS)
        rows = max(MIN_PARTIAL_ROWS, 4 * num_chunks * kind.num_kv_heads * kind.group)
        if self._partials.numel() < rows * self._row_floats:
            self._partials = torch.empty(rows * self._row_floats)
        return Work(max_items, num_splits, rows)

    def _allocate_workspace(self, library: NativeLibrary) -> tuple[Tensor, int]:
        size = library.handle.stepgraph_attention_workspace
        size.argtypes, size.restype = (ctypes.c_int,), ctypes.c_int64
        per_thread = int(size(self._row_floats - 2))
        memory = torch.empty(self._num_threads * per_thread + 64, dtype=torch.uint8)
        return memory[-memory.data_ptr() % 64 :], per_thread

    def _template(self, shape: AttentionShape, kind: WorkKind, workspace_bytes: int) -> Tensor:
        """`AttendArgs` with all that stays from step to step, as memory."""
        args = AttendArgs(
            workspace=self._workspace.data_ptr(),
            workspace_bytes=workspace_bytes,
            workspace_threads=self._num_threads,
            num_q_heads=shape.num_q_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=self._block_size,
            window=kind.window,
            dtype=DTYPES[shape.dtype],
            kv_dtype=DTYPES[shape.kv_dtype],
            scale=shape.scale,
            softcap=shape.softcap,
        )
        return torch.frombuffer(args, dtype=torch.int32)

    def _allocate_layer(self, shape: AttentionShape, num_blocks: int) -> LayerKV:
        sizes = (num_blocks, shape.num_kv_heads, self._block_size, shape.head_dim)
        return LayerKV(*(lazy_zeros(sizes, shape.kv_dtype).transpose(1, 2) for _ in range(2)))


@wrap_torch_function(lambda kernel, *args: args[:-1])
def _attend(
    kernel: int,
    template: Tensor,
    q: Tensor,
    out: Tensor,
    k: Tensor,
    v: Tensor,
    work: Tensor,
    block_table: Tensor,
    partials: Tensor,
    workspace: Tensor,
    num_threads: int,
) -> None:
    """The launch, as captures see it: tensors and numbers, all of them static but for what the
    tensors hold."""
    args = AttendArgs()
    ctypes.memmove(ctypes.byref(args), template.data_ptr(), ctypes.sizeof(args))
    args.plan = work.data_ptr()
    args.q, args.out = q.data_ptr(), out.data_ptr()
    args.k, args.v = k.data_ptr(), v.data_ptr()
    args.q_token, args.q_head, _ = q.stride()
    args.out_token, args.out_head, _ = out.stride()
    args.kv_block, args.kv_token, args.kv_head, _ = k.stride()
    args.block_table, args.table_row = block_table.data_ptr(), block_table.stride(0)
    args.partials = partials.data_ptr()
    args.out_tokens = len(out)
    tensors = (q, out, k, v, work, block_table, partials, workspace)
    launch(NativeKernel("stepgraph_attention", kernel), args, tensors, num_threads)


def _planner(library: NativeLibrary) -> Callable[..., int]:
    function: Any = library.handle.stepgraph_plan_attention
    function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int
    return function  # type: ignore[no-any-return]


def _kind_of(shape: AttentionShape) -> WorkKind:
    return WorkKind(shape.window or 0, shape.num_kv_heads, shape.num_q_heads // shape.num_kv_heads)


def _tile_tokens(kind: WorkKind) -> int:
    return max(1, TILE_ROWS // kind.group)


def _most_tiles(bucket: Bucket, kind: WorkKind) -> int:
    return bucket.num_tokens // _tile_tokens(kind) + bucket.num_reqs


def _refusal(shape: AttentionShape, block_size: int, device: torch.device) -> str:
    """Why the kernel cannot serve the shape here, whatever the machine has; "" where it can."""
    heads, kv_heads = shape.num_q_heads, shape.num_kv_heads
    if device.type != "cpu":
        return f"runs on the CPU, not on {device}"
    for what, dtype in (("dtype", shape.dtype), ("kv_dtype", shape.kv_dtype)):
        if dtype not in DTYPES:
            return f"{what} {dtype} is not one of {', '.join(map(str, DTYPES))}"
    if heads % kv_heads:
        return f"{heads} query heads cannot share {kv_heads} K/V heads evenly"
    if heads // kv_heads > TILE_ROWS:
        return f"{heads // kv_heads} query heads of one K/V head are more than {TILE_ROWS}"
    if shape.head_dim % 16 or not 0 < shape.head_dim <= MAX_HEAD_DIM:
        return f"head_dim {shape.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}"
    if shape.scale <= 0:
        return f"a scale of {shape.scale} is not > 0"
    if block_size < 1:
        return f"a block size of {block_size} is not >= 1"
    return ""
