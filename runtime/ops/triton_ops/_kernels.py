"""Triton kernels of the ops. A program handles one token, or a part of one; rows may be strided,
their last dimension is dense unless a stride of it is taken.

Values are raised to float32 when they are loaded: the interpreter knows no bfloat16 arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_rows(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    hidden,
    eps,
    stride_x,
    stride_residual,
    stride_out,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (T). With a residual: residual += x, rounded as it is stored, and the norm of that."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x = tl.load(x_ptr + row * stride_x + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        place = residual_ptr + row * stride_residual + columns
        total = x + tl.load(place, mask=inside, other=0.0).to(tl.float32)
        rounded = total.to(residual_ptr.dtype.element_ty)
        tl.store(place, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / hidden + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    out = (x * scale * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride_out + columns, out, mask=inside)


@triton.jit
def heads(
    x_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    num_heads,
    eps,
    stride_token,
    stride_head,
    stride_weight,
    stride_turn,
    out_stride_token,
    out_stride_head,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_TURN: tl.constexpr,
):
    """Grid (T, parts of the heads): the norm of each head, then its rotation; `out` may be `x`.

    Dimension i turns with i + HALF. cos and sin are [T, 2 * HALF]: cosines twice, sines negated in
    the first half.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, BLOCK_HALF)
    inside = (head < num_heads)[:, None] & (dims < HALF)[None, :]
    place = x_ptr + token * stride_token + head[:, None] * stride_head + dims[None, :]
    low = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)[:, None]
        place = weight_ptr + head[:, None] * stride_weight + dims[None, :]
        low *= scale * tl.load(place, mask=inside, other=0.0).to(tl.float32)
        high *= scale * tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    if HAS_TURN:
        turned = token * stride_turn + dims
        cos = tl.load(cos_ptr + turned, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
        sin = tl.load(sin_ptr + turned + HALF, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
        before = low
        low = low * cos - high * sin
        high = high * cos + before * sin
    place = out_ptr + token * out_stride_token + head[:, None] * out_stride_head + dims[None, :]
    tl.store(place, low.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(place + HALF, high.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def kv_rows(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    num_heads,
    k_stride_token,
    k_stride_head,
    k_stride_dim,
    v_stride_token,
    v_stride_head,
    v_stride_dim,
    stride_block,
    stride_offset,
    stride_head,
    stride_dim,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid (T): one token's K and V into its slot; both caches have the same strides."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    inside = (head < num_heads) & (dims < HEAD_DIM)
    to = (slot // BLOCK_SIZE) * stride_block + (slot % BLOCK_SIZE) * stride_offset
    to += head * stride_head + dims * stride_dim
    k_from = k_ptr + token * k_stride_token + head * k_stride_head + dims * k_stride_dim
    v_from = v_ptr + token * v_stride_token + head * v_stride_head + dims * v_stride_dim
    k = tl.load(k_from, mask=inside, other=0.0)
    v = tl.load(v_from, mask=inside, other=0.0)
    tl.store(k_cache_ptr + to, k.to(k_cache_ptr.dtype.element_ty), mask=inside)
    tl.store(v_cache_ptr + to, v.to(v_cache_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated(gate_up_ptr, out_ptr, inner, stride_in, stride_out, BLOCK: tl.constexpr):
    """Grid (T, parts of the row): silu(gate) * up, gate in the first `inner` columns."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    place = gate_up_ptr + row * stride_in + columns
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + inner, mask=inside, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * stride_out + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _best(values, ids):
    """The largest value, NaN being larger than any number, and the lowest id that has it."""
    broken = values != values
    top = tl.max(tl.where(broken, float("-inf"), values), 0)
    if_whole = tl.min(tl.where(values == top, ids, 2147483647), 0)
    if_broken = tl.min(tl.where(broken, ids, 2147483647), 0)
    is_broken = if_broken < 2147483647
    return tl.where(is_broken, float("nan"), top), tl.where(is_broken, if_broken, if_whole)


@triton.jit
def best_of_parts(scores_ptr, top_ptr, id_ptr, width, stride, num_parts, BLOCK: tl.constexpr):
    """Grid (S, parts of the row): float32 maximum and id of each part, [S, parts]."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    place = scores_ptr + row * stride + ids
    values = tl.load(place, mask=ids < width, other=float("-inf")).to(tl.float32)
    top, first = _best(values, ids)
    tl.store(top_ptr + row * num_parts + part, top)
    tl.store(id_ptr + row * num_parts + part, first)


@triton.jit
def best_of_rows(part_top_ptr, part_id_ptr, top_ptr, id_ptr, num_parts, width, BLOCK: tl.constexpr):
    """Grid (S): the best of a row's parts."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, BLOCK)
    place = row * num_parts + parts
    inside = parts < num_parts
    values = tl.load(part_top_ptr + place, mask=inside, other=float("-inf"))
    ids = tl.load(part_id_ptr + place, mask=inside, other=2147483647)
    top, first = _best(values, ids)
    tl.store(top_ptr + row, top)
    tl.store(id_ptr + row, tl.minimum(first, width - 1).to(tl.int64))
