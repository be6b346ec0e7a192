"""FlashInfer: host-planned wrappers, one per bucket and attention shape, over one paged cache."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from attention_backends._chip import is_installed, refuse_chip
from attention_backends._flash_infer_metadata import Pages
from attention_backends._flash_infer_wrappers import LIBRARY, PlannedDecode, PlannedMixed
from attention_backends._interface import (
    AttentionBatch,
    AttentionShape,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
)
from attention_backends._kernel_library import open_library, version_of
from attention_backends._nhd import allocate_kv, group_shapes, query_lens

HEAD_DIMS = (64, 128, 256)
MIN_VERSION = (0, 7)
FLOAT_WORKSPACE_BYTES = 128 * 1024 * 1024
"""What FlashInfer recommends: partial results of split keys; an eager plan needs no more than
2 * multiprocessors * 128 rows of head_dim + 1 float32."""


@dataclass(slots=True)
class FlashInferPlan:
    wrappers: list[PlannedDecode] | list[PlannedMixed]
    """one per distinct shape, planned"""


class Backend:
    """See `AttentionBackend`. One-token steps take the decode wrapper, all others the prefill one;
    both run the same tensor-core kernel."""

    name: ClassVar[str] = "flash_infer"

    def __init__(
        self, shapes: Sequence[AttentionShape], block_size: int, device: torch.device
    ) -> None:
        """The kernels are compiled at the first plan.

        Raises:
            ValueError: `examine` refuses a shape.
        """
        for shape in dict.fromkeys(shapes):
            if reason := _refuse(shape, device):
                raise ValueError(f"flash_infer: {reason}")
        self._library = open_library(LIBRARY).module
        self._layers = list(shapes)
        self._shapes, self._shape_of_layer = group_shapes(shapes)
        self._block_size = block_size
        self._device = device
        self._space = torch.zeros(FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._decode = [
            PlannedDecode(self._library, s, block_size, self._space) for s in self._shapes
        ]
        self._mixed = [
            PlannedMixed(self._library, s, block_size, self._space) for s in self._shapes
        ]
        self._buckets: dict[int, list[PlannedDecode]] = {}

    @classmethod
    def preference(cls, device: torch.device) -> int:
        return 20

    @classmethod
    def examine(cls, shape: AttentionShape, block_size: int, device: torch.device) -> Support:
        reason = _refuse(shape, device)
        return Support(not reason, reason, graph=GraphSupport.ONE_TOKEN, host_plan=True)

    def allocate_kv(self, num_blocks: int) -> list[LayerKV]:
        return allocate_kv(self._layers, num_blocks, self._block_size, self._device)

    def plan(self, batch: AttentionBatch) -> FlashInferPlan:
        wrappers = self._decode if bool((query_lens(batch) == 1).all()) else self._mixed
        pages = Pages.of(batch, self._block_size)
        for wrapper in wrappers:
            wrapper.plan(pages)
        return FlashInferPlan(wrappers)

    def attend(self, layer: int, q: Tensor, kv: LayerKV, out: Tensor, plan: FlashInferPlan) -> None:
        plan.wrappers[self._shape_of_layer[layer]].run(q, kv, out)

    def reserve(self, buckets: Sequence[Bucket], max_model_len: int) -> int:
        """Builds every decode bucket's wrappers, over shared buffers, and compiles the kernels.

        Raises:
            ValueError: a bucket that is not one token per request.
        """
        for bucket in buckets:
            if bucket.kind != "decode" or bucket.num_tokens != bucket.num_reqs:
                raise ValueError(f"flash_infer: cannot be captured for {bucket}")
        sizes = sorted({bucket.num_reqs for bucket in buckets}, reverse=True)
        if not sizes:
            return 0
        max_blocks = -(-max_model_len // self._block_size)
        arrays = [self._int_buffer(n) for n in (sizes[0] + 1, sizes[0] * max_blocks, sizes[0])]
        self._buckets, needs = {}, {}
        for size in sizes:
            wrappers = [
                PlannedDecode(self._library, s, self._block_size, self._space, size, arrays)
                for s in self._shapes
            ]
            needs[size] = [wrapper.measure(max_blocks) for wrapper in wrappers]
            self._buckets[size] = wrappers
        return sum(a.nbytes for a in arrays) + self._share_workspaces(needs)

    def open_bucket(self, bucket: Bucket, batch: AttentionBatch) -> FlashInferPlan:
        """Raises ValueError where `reserve` was not told of the bucket."""
        if bucket.num_tokens != bucket.num_reqs or bucket.num_reqs not in self._buckets:
            raise ValueError(f"flash_infer: {bucket} was not reserved")
        plan = FlashInferPlan(self._buckets[bucket.num_reqs])
        self.refresh(plan, batch)
        return plan

    def refresh(self, plan: FlashInferPlan, batch: AttentionBatch) -> None:
        """Raises ValueError where the step is not padded to one token per row of the bucket."""
        if not bool((query_lens(batch) == 1).all()):
            raise ValueError("flash_infer: each row of a decode bucket has one query token")
        pages = Pages.of(batch, self._block_size)
        for wrapper in plan.wrappers:
            wrapper.plan(pages)

    def _int_buffer(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.int32, device=self._device)

    def _share_workspaces(self, needs: dict[int, list[tuple[int, int]]]) -> int:
        """One float workspace for all, one integer workspace per shape: only the wrapper planned
        last reads it.

        Args:
            needs: bucket size -> (float, integer) bytes for each shape.

        Returns:
            the bytes of what is new.
        """
        added = 0
        float_bytes = max(floats for row in needs.values() for floats, _ in row)
        if float_bytes > self._space.nbytes:
            self._space = torch.zeros(float_bytes, dtype=torch.uint8, device=self._device)
            added += float_bytes
        for index in range(len(self._shapes)):
            int_bytes = max(row[index][1] for row in needs.values())
            ints = torch.zeros(int_bytes, dtype=torch.uint8, device=self._device)
            added += int_bytes
            for wrappers in self._buckets.values():
                wrappers[index].use_workspaces(self._space, ints)
        return added


def _refuse(shape: AttentionShape, device: torch.device) -> str:
    if reason := refuse_chip(device):
        return reason
    if not is_installed(LIBRARY.module):
        return "flashinfer is not installed: pip install flashinfer-python"
    if not is_installed("tvm_ffi"):
        return "flashinfer needs tvm_ffi: pip install apache-tvm-ffi"
    if version := _too_old():
        return f"flashinfer-python {version} is too old: 0.7 or newer is needed"
    if not is_installed("flashinfer_jit_cache"):
        if not _has_nvcc():
            return "flashinfer compiles its kernels: nvcc is not on the PATH, nor under CUDA_HOME"
        if not shutil.which("ninja"):
            return "flashinfer compiles its kernels: ninja is not on the PATH (pip install ninja)"
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"dtype {shape.dtype} is not supported: float16 or bfloat16"
    if shape.kv_dtype != shape.dtype:
        return f"the cache must hold the model's {shape.dtype}, not {shape.kv_dtype}"
    if shape.head_dim not in HEAD_DIMS:
        return f"head_dim {shape.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if shape.num_q_heads % shape.num_kv_heads:
        return f"{shape.num_q_heads} query heads do not divide among {shape.num_kv_heads} K/V heads"
    return open_library(LIBRARY).reason


def _too_old() -> str:
    """The installed version where its wrappers cannot tell how much workspace they need."""
    version = version_of(LIBRARY.distributions)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return version if numbers and tuple(map(int, numbers.groups())) < MIN_VERSION else ""


def _has_nvcc() -> bool:
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return bool(shutil.which("nvcc")) or any(
        Path(home, "bin", "nvcc").is_file() for home in homes if home
    )
