"""FlashInfer's two wrappers for one attention shape, each fenced against its own next plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from attention_backends._flash_infer_metadata import Pages
from attention_backends._interface import AttentionShape, LayerKV
from attention_backends._kernel_library import Call, Library
from attention_backends._nhd import left_window

KERNELS = "fa2"
"""The same kernels on Ampere, Ada and Hopper; "auto" may choose others, with other limits."""

_PROBLEM = (
    "num_qo_heads", "num_kv_heads", "page_size", "sm_scale", "window_left", "logits_soft_cap",
    "q_data_type", "kv_data_type",
)  # fmt: skip
_MIXED_PLAN = (
    "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", *_PROBLEM,
    "head_dim_qk", "causal",
)  # fmt: skip
_DECODE_PLAN = ("indptr", "indices", "last_page_len", *_PROBLEM, "head_dim")
_MIXED = "BatchPrefillWithPagedKVCacheWrapper"
_DECODE = "BatchDecodeWithPagedKVCacheWrapper"
_MAKE = ("float_workspace_buffer", "kv_layout", "backend")
_RUN = ("self", "q", "paged_kv_cache", "out")
LIBRARY = Library(
    "flashinfer",
    ("flashinfer-python",),
    "FlashInfer 0.7 or newer",
    (
        Call(_MIXED, _MAKE),
        Call(f"{_MIXED}.plan", ("self", *_MIXED_PLAN, "non_blocking")),
        Call(f"{_MIXED}.run", _RUN),
        Call(
            _DECODE,
            (
                *_MAKE,
                "use_tensor_cores",
                "use_cuda_graph",
                "paged_kv_indptr_buffer",
                "paged_kv_indices_buffer",
                "paged_kv_last_page_len_buffer",
            ),
        ),
        Call(f"{_DECODE}.plan", ("self", *_DECODE_PLAN, "non_blocking")),
        Call(f"{_DECODE}.run", _RUN),
        Call(f"{_DECODE}.workspace_size", ("self", *_DECODE_PLAN)),
        Call(
            f"{_DECODE}.reset_workspace_buffer",
            ("self", "float_workspace_buffer", "int_workspace_buffer"),
        ),
    ),
)


class Event(Protocol):
    """The part of `torch.cuda.Event` that a fence needs."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


class NoEvent:
    """Where there is no stream to wait for."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def make_event(device: torch.device) -> Event:
    return torch.cuda.Event() if device.type == "cuda" else NoEvent()


class _Planned:
    """A wrapper. Its plan writes one pinned buffer and copies it to the device later, so the next
    plan waits until that copy has passed."""

    def __init__(self, wrapper: Any, shape: AttentionShape, block_size: int) -> None:
        self._wrapper = wrapper
        self._shape = shape
        self._block_size = block_size
        self._copied = make_event(wrapper.device)

    def plan(self, pages: Pages) -> None:
        """Outside captured regions."""
        self._copied.synchronize()
        self._wrapper.plan(**self._metadata(pages), **self._problem(), non_blocking=True)
        self._copied.record()

    def run(self, q: Tensor, kv: LayerKV, out: Tensor) -> None:
        """q and out [T, Hq, D]"""
        self._wrapper.run(q, (kv.k, kv.v), out=out)

    def _metadata(self, pages: Pages) -> dict[str, Tensor]:
        raise NotImplementedError

    def _problem(self) -> dict[str, object]:
        """The arguments of `plan` and `workspace_size` that do not change. The data types are said
        because the default is float16."""
        shape = self._shape
        return {
            "num_qo_heads": shape.num_q_heads,
            "num_kv_heads": shape.num_kv_heads,
            "page_size": self._block_size,
            "sm_scale": shape.scale,
            "window_left": left_window(shape.window),
            "logits_soft_cap": shape.softcap or None,
            "q_data_type": shape.dtype,
            "kv_data_type": shape.kv_dtype,
        }


class PlannedMixed(_Planned):
    """Any mix of query lengths; not for captured graphs."""

    def __init__(self, library: Any, shape: AttentionShape, block_size: int, space: Tensor) -> None:
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(space, "NHD", backend=KERNELS)
        super().__init__(wrapper, shape, block_size)

    def _metadata(self, pages: Pages) -> dict[str, Tensor]:
        return {
            "qo_indptr": pages.query_start,
            "paged_kv_indptr": pages.start,
            "paged_kv_indices": pages.indices,
            "paged_kv_last_page_len": pages.last_len,
        }

    def _problem(self) -> dict[str, object]:
        return {**super()._problem(), "head_dim_qk": self._shape.head_dim, "causal": True}


class PlannedDecode(_Planned):
    """One query token per request, by the tensor-core kernel that `PlannedMixed` runs.

    With `num_reqs` and `arrays` it is for captured graphs: the batch is fixed, and plans copy their
    metadata to prefixes of the arrays (start [>= R+1], indices, last_len [>= R], int32).
    """

    def __init__(
        self,
        library: Any,
        shape: AttentionShape,
        block_size: int,
        space: Tensor,
        num_reqs: int = 0,
        arrays: Sequence[Tensor] = (),
    ) -> None:
        static = {}
        if num_reqs:
            start, indices, last_len = arrays
            static = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": start[: num_reqs + 1],
                "paged_kv_indices_buffer": indices,
                "paged_kv_last_page_len_buffer": last_len[:num_reqs],
            }
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            space, "NHD", use_tensor_cores=True, backend=KERNELS, **static
        )
        super().__init__(wrapper, shape, block_size)
        self._num_reqs = num_reqs

    def measure(self, max_blocks: int) -> tuple[int, int]:
        """Bytes of (float, integer) workspace that the fixed batch needs at most.

        Compiles the kernel, and lets go of the 16 MiB that the library gives each wrapper.
        """
        rows, device = self._num_reqs, self._wrapper.device
        start = torch.arange(rows + 1, dtype=torch.int32) * max_blocks
        pages = Pages(
            query_start=torch.arange(rows + 1, dtype=torch.int32),
            start=start,
            indices=torch.zeros(rows * max_blocks, dtype=torch.int32, device=device),
            last_len=torch.full((rows,), self._block_size, dtype=torch.int32),
        )
        needs = self._wrapper.workspace_size(**self._metadata(pages), **self._problem())
        nothing = torch.empty(0, dtype=torch.uint8, device=device)
        self._wrapper.reset_workspace_buffer(nothing, nothing)
        return int(needs[0]), int(needs[1])

    def use_workspaces(self, floats: Tensor, ints: Tensor) -> None:
        """Before the first plan."""
        self._wrapper.reset_workspace_buffer(floats, ints)

    def _metadata(self, pages: Pages) -> dict[str, Tensor]:
        return {
            "indptr": pages.start,
            "indices": pages.indices,
            "last_page_len": pages.last_len,
        }

    def _problem(self) -> dict[str, object]:
        return {**super()._problem(), "head_dim": self._shape.head_dim}
