"""`flashinfer` 0.7, the two paged wrappers.

Sources of the rules: prefill.py, decode.py, include/flashinfer/attention/scheduler.cuh. A plan
writes the wrapper's pinned buffer and copies it to the device later: only an event that was
synchronised proves that the copy has passed, and a plan before that is an error here. In graph
mode a launch reads the buffers that it was given and the integer workspace, which holds the plan of
whichever wrapper wrote it last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.unit.attention_backends.fakes.recording import (
    Call,
    Recorder,
    require,
    require_int32,
)
from tests.unit.attention_backends.paging import paged_reference

PINNED_BYTES = 8 * 1024 * 1024
CTA_TILE_Q = 16


@dataclass
class Stream:
    """What the device may not have copied yet, and what its integer workspaces hold."""

    in_flight: set[int]
    """wrappers whose pinned buffer is still to be read"""
    workspaces: dict[int, tuple[Any, Any]]
    """address of an integer workspace -> (wrapper, plan) that it holds, in stream order"""


class FakeEvent:
    """Once synchronised, the copies queued before it was recorded have passed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._before: set[int] = set()

    def record(self) -> None:
        self._before = set(self._stream.in_flight)

    def synchronize(self) -> None:
        self._stream.in_flight -= self._before


@dataclass(frozen=True)
class PlanInfo:
    """What the kernel launch takes by value, so what a graph freezes."""

    rows: int
    num_tiles: int
    causal: bool
    window_left: int
    softcap: float
    scale: float


def make_module() -> ModuleType:
    module = ModuleType("flashinfer")
    stream = Stream(set(), {})
    calls = Recorder()
    shared = {"stream": stream, "calls": calls}
    module.stream, module.calls = stream, calls
    for wrapper in (BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper):
        setattr(module, wrapper.__name__, type(wrapper.__name__, (wrapper,), shared))
    return module


class _Wrapper:
    stream: Stream
    calls: Recorder

    def _set_up(self, space: Tensor, kv_layout: str, backend: str) -> None:
        require(space.dtype == torch.uint8, "the workspace is bytes")
        require(
            space.is_meta or not space.any(), "the float workspace must be zero for its first use"
        )
        require(kv_layout == "NHD", "our cache is NHD")
        require(backend == "fa2", "backend must be said: auto may choose others")
        self._floats = space
        self._ints = torch.empty(PINNED_BYTES, dtype=torch.uint8)
        self._planned: Any = None
        self.device = space.device

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        require(self._planned is None, "a planned wrapper's workspace moved")
        self._floats, self._ints = float_workspace_buffer, int_workspace_buffer

    def _queue(self, info: PlanInfo, dtypes: tuple, heads: tuple[int, int], need: tuple) -> None:
        in_flight = self.stream.in_flight
        require(id(self) not in in_flight, "the pinned buffer is overwritten in flight")
        require(need[0] <= self._floats.nbytes, "float workspace overflow")
        require(need[1] <= self._ints.nbytes, "integer workspace overflow")
        self._planned, self._dtypes, self._heads = info, dtypes, heads
        in_flight.add(id(self))
        self.stream.workspaces[self._ints.data_ptr()] = (self, info)

    def _buffers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(query_start, start, indices, last_len) on the device"""
        raise NotImplementedError

    def _launch(self, q: Tensor, kv: tuple[Tensor, Tensor], out: Tensor) -> None:
        k, v = kv
        require(self._planned is not None, "run before plan")
        require((q.dtype, k.dtype) == self._dtypes, f"planned for {self._dtypes}")
        require(k.stride() == v.stride(), "another module would be compiled for these strides")
        require(out.shape == q.shape, "out must be shaped as q")
        require(out.dtype == q.dtype, "out must have q's dtype")
        require((q.shape[1], k.shape[2]) == self._heads, f"planned for {self._heads} heads")
        require(q.shape[0] == self._planned.rows, f"planned for {self._planned.rows} rows")
        arguments = {
            "wrapper": self,
            "info": self._planned,
            "ints": self._ints,
            "q": q,
            "k": k,
            "v": v,
            "out": out,
        }
        for name, buffer in zip(
            ("starts", "start", "indices", "last"), self._buffers(), strict=True
        ):
            arguments[name] = buffer
        self.calls.append(Call(_kernel, arguments))
        _kernel(**arguments)


def _kernel(
    wrapper: _Wrapper,
    info: PlanInfo,
    ints: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    starts: Tensor,
    start: Tensor,
    indices: Tensor,
    last: Tensor,
) -> None:
    writer, planned = wrapper.stream.workspaces[ints.data_ptr()]
    require(writer is wrapper, "the integer workspace holds another wrapper's plan")
    require(planned == info, f"launched with {info}, the workspace holds {planned}")
    blocks = [indices[a:b].tolist() for a, b in pairwise(start.tolist())]
    full = [max(len(row) - 1, 0) * k.shape[1] for row in blocks]
    lens = [tokens + rest for tokens, rest in zip(full, last.tolist(), strict=True)]
    result = paged_reference(
        q,
        k,
        v,
        query_starts=starts.tolist(),
        key_lens=lens,
        blocks=blocks,
        scale=info.scale,
        left=None if info.window_left < 0 else info.window_left,
        softcap=info.softcap,
        causal=info.causal,
    )
    out.copy_(result)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
        variant_owns_mask=False,
    ) -> None:
        require(not use_cuda_graph, "not modelled")
        self._set_up(float_workspace_buffer, kv_layout, backend)

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
        uniform_q_len=None,
    ) -> None:
        batch = len(qo_indptr) - 1
        require(causal, "our layers are causal")
        require_pages(batch, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        require_int32(qo_indptr, "qo_indptr", (batch + 1,))
        self._pages = tuple(
            tensor.clone()
            for tensor in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        )
        info = PlanInfo(
            int(qo_indptr[-1]), 0, causal, window_left, logits_soft_cap or 0.0, sm_scale
        )
        self._queue(info, (q_data_type, kv_data_type), (num_qo_heads, num_kv_heads), (0, 0))

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        lse_base="log2",
        lse_layout="NH",
        enable_pdl=None,
        window_left=None,
        sinks=None,
        kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None,
        use_fp16_softmax=None,
        uses_spcompress=None,
    ) -> Tensor:
        self._launch(q, paged_kv_cache, out)
        return out

    def _buffers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._pages


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ) -> None:
        require(use_tensor_cores, "CUDA-core decoding has other limits")
        self._set_up(float_workspace_buffer, kv_layout, backend)
        self._static = None
        if use_cuda_graph:
            self._fixed = len(paged_kv_last_page_len_buffer)
            require(len(paged_kv_indptr_buffer) == self._fixed + 1, "indptr buffer size")
            self._static = (
                torch.arange(self._fixed + 1, dtype=torch.int32),
                paged_kv_indptr_buffer,
                paged_kv_indices_buffer,
                paged_kv_last_page_len_buffer,
            )

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *deprecated_positional_args,
        **kwargs,
    ) -> None:
        require(not deprecated_positional_args, "deprecated: pass them by keyword")
        self._plan_impl(
            indptr,
            indices,
            last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            **kwargs,
        )

    def _plan_impl(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *,
        pos_encoding_mode="NONE",
        window_left=-1,
        window_right=0,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
        block_tables=None,
        seq_lens=None,
        fixed_split_size=None,
        disable_split_kv=False,
        q_len_per_req=1,
        is_causal=None,
    ) -> None:
        batch = len(last_page_len)
        require_pages(batch, indptr, indices, last_page_len, page_size)
        if self._static:
            require(batch == self._fixed, f"the batch is fixed at {self._fixed}, got {batch}")
            require(len(indices) <= len(self._static[2]), "more indices than the buffer holds")
            self._static[1].copy_(indptr, non_blocking=non_blocking)
            self._static[2][: len(indices)].copy_(indices, non_blocking=non_blocking)
            self._static[2][len(indices) :] = 10**6
            self._static[3].copy_(last_page_len, non_blocking=non_blocking)
        else:
            starts = torch.arange(batch + 1, dtype=torch.int32)
            self._pages = (starts, indptr.clone(), indices.clone(), last_page_len.clone())
        info = PlanInfo(
            batch,
            _num_tiles(batch, num_qo_heads, num_kv_heads) if self._static else 0,
            False,
            window_left,
            logits_soft_cap or 0.0,
            sm_scale,
        )
        need = _workspace_bytes(batch, num_qo_heads, num_kv_heads, head_dim)
        heads = (num_qo_heads, num_kv_heads)
        self._queue(info, (q_data_type, kv_data_type), heads, need if self._static else (0, 0))

    def workspace_size(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        block_tables=None,
        seq_lens=None,
        fixed_split_size=None,
        disable_split_kv=False,
        q_len_per_req=1,
    ) -> tuple[int, int]:
        batch = len(last_page_len)
        require(batch == self._fixed, "the batch is fixed")
        require_pages(batch, indptr, indices, last_page_len, page_size)
        require(len(indices) <= len(self._static[2]), "more indices than the buffer holds")
        return _workspace_bytes(batch, num_qo_heads, num_kv_heads, head_dim)

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        q_len_per_req=None,
        skip_softmax_threshold_scale_factor=None,
        kv_cache_sf=None,
    ) -> Tensor:
        self._launch(q, paged_kv_cache, out)
        return out

    def _buffers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._static or self._pages


def require_pages(
    batch: int, indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int
) -> None:
    require_int32(indptr, "kv indptr", (batch + 1,))
    require_int32(last_page_len, "last_page_len", (batch,))
    require_int32(indices, "kv indices", (int(indptr[-1]),))
    require(indptr.device.type == "cpu", "indptr belongs on the host: plan would sync")
    require(last_page_len.device.type == "cpu", "last_page_len belongs on the host")
    require(not indptr.is_pinned(), "the copy of a pinned tensor would be asynchronous")
    counts = indptr.diff()
    full = (last_page_len >= 1) & (last_page_len <= page_size)
    require(bool(torch.where(counts > 0, full, last_page_len == 0).all()), "last_page_len")


def _num_tiles(rows: int, q_heads: int, kv_heads: int) -> int:
    """Query tiles of a captured plan: the ragged worst case of scheduler.cuh."""
    return math.ceil(rows * (q_heads // kv_heads) / CTA_TILE_Q) + rows - 1


def _workspace_bytes(rows: int, q_heads: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
    tiles = max(2 * 132 // kv_heads, _num_tiles(rows, q_heads, kv_heads))
    partial_rows = math.ceil(tiles * CTA_TILE_Q / (q_heads // kv_heads))
    floats = q_heads * partial_rows * (head_dim + 1) * 4
    return floats, 4 * (3 * tiles + 2 * rows + 4) + tiles
