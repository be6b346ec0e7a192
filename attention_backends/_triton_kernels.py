"""Triton kernels of `triton_paged`; imports triton, so it is imported when the backend is built.

Two kernels share a step, and each passes over the other's rows, so that their grids depend on
padded sizes only: `ragged` takes requests with several query tokens (tiles of tokens x the heads of
a group), `decode` takes requests with one (split over keys, then `reduce`). Every length is read on
the device. A key at or past seq_len is never loaded, so whatever lies there, NaN included, cannot
reach a result.

Scores live in base 2: exp2(x * log2(e)) is exp(x).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _scores(q, k, scale, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """q [M, D], k [N, D] -> [M, N] fp32 in base 2, soft-capped."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if SOFTCAP > 0:
        # tanh(x) = 2 sigmoid(2x) - 1; tl has no tanh that every target and the interpreter share
        s = SOFTCAP * (2 * tl.sigmoid(s * (2.0 / SOFTCAP)) - 1)
    return s * LOG2E


@triton.jit
def _attend_tiles(
    acc,
    top,
    total,
    q,
    position,
    first_tile,
    end_tile,
    seq_len,
    k_ptr,
    v_ptr,
    table_ptr,
    scale,
    stride_block,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax over key tiles first_tile .. end_tile - 1.

    acc [M, D], top [M] (running maximum), total [M] (running sum), position [M] of each row's
    token. MASKED False is for tiles of which every row sees every key.
    """
    dims = tl.arange(0, BLOCK_D)
    for tile in range(first_tile, end_tile):
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        if MASKED:
            block = tl.load(table_ptr + key // BLOCK_SIZE, mask=key < seq_len, other=0)
        else:
            block = tl.load(table_ptr + key // BLOCK_SIZE)
        row = block.to(tl.int64) * stride_block + (key % BLOCK_SIZE) * stride_slot
        offsets = row[:, None] + dims[None, :]
        if MASKED or BLOCK_D != HEAD_DIM:
            inside = (key < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
            k = tl.load(k_ptr + offsets, mask=inside, other=0.0)
            v = tl.load(v_ptr + offsets, mask=inside, other=0.0)
        else:
            k = tl.load(k_ptr + offsets)
            v = tl.load(v_ptr + offsets)

        s = _scores(q, k, scale, SOFTCAP, PRECISION)
        if MASKED:
            seen = (key[None, :] <= position[:, None]) & (key < seq_len)[None, :]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            s = tl.where(seen, s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(s - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(p, 1)
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        top = new_top
    return acc, top, total


@triton.jit(do_not_specialize=["num_reqs", "max_blocks"])
def ragged(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    query_start_ptr,
    seq_lens_ptr,
    table_ptr,
    num_reqs,
    max_blocks,
    scale,
    q_stride_token,
    q_stride_head,
    out_stride_token,
    out_stride_head,
    stride_block,
    stride_slot,
    stride_head,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (T // TOKENS + R, Hkv): request r owns tiles from query_start[r] // TOKENS + r on."""
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    # long prompts do most of their work in their last tiles: start those first
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)

    req = -1
    for first in range(0, num_reqs, 128):
        r = first + tl.arange(0, 128)
        start = tl.load(query_start_ptr + r, mask=r < num_reqs, other=0)
        req += tl.sum(((start // TOKENS + r <= pid) & (r < num_reqs)).to(tl.int32))
    query_start = tl.load(query_start_ptr + req)
    query_len = tl.load(query_start_ptr + req + 1) - query_start
    token = (pid - query_start // TOKENS - req) * TOKENS
    if token >= query_len:
        return
    if query_len == 1:
        return
    seq_len = tl.minimum(tl.load(seq_lens_ptr + req), max_blocks * BLOCK_SIZE)

    lane = tl.arange(0, BLOCK_M)
    row_token = token + lane // GROUP
    row_head = head * GROUP + lane % GROUP
    dims = tl.arange(0, BLOCK_D)
    valid = ((lane < TOKENS * GROUP) & (row_token < query_len))[:, None] & (dims < HEAD_DIM)[
        None, :
    ]
    q_rows = (query_start + row_token).to(tl.int64) * q_stride_token + row_head * q_stride_head
    q = tl.load(q_ptr + q_rows[:, None] + dims[None, :], mask=valid, other=0.0)

    position = seq_len - query_len + row_token
    lowest = seq_len - query_len + token
    highest = tl.minimum(lowest + TOKENS, seq_len) - 1
    begin = 0
    full_begin = 0
    end = tl.maximum(highest, 0) // BLOCK_N + 1
    if WINDOW > 0:
        begin = tl.maximum(lowest - WINDOW + 1, 0) // BLOCK_N
        full_begin = tl.minimum(tl.cdiv(tl.maximum(highest - WINDOW + 1, 0), BLOCK_N), end)
    full_end = tl.maximum(tl.maximum(lowest + 1, 0) // BLOCK_N, full_begin)

    k_ptr += head * stride_head
    v_ptr += head * stride_head
    table_ptr += req.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if WINDOW > 0:
        acc, top, total = _attend_tiles(
            acc, top, total, q, position, begin, full_begin, seq_len, k_ptr, v_ptr, table_ptr,
            scale, stride_block, stride_slot,
            HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOW, SOFTCAP, PRECISION, True,
        )  # fmt: skip
    acc, top, total = _attend_tiles(
        acc, top, total, q, position, full_begin, full_end, seq_len, k_ptr, v_ptr, table_ptr,
        scale, stride_block, stride_slot,
        HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOW, SOFTCAP, PRECISION, False,
    )  # fmt: skip
    acc, top, total = _attend_tiles(
        acc, top, total, q, position, full_end, end, seq_len, k_ptr, v_ptr, table_ptr,
        scale, stride_block, stride_slot,
        HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOW, SOFTCAP, PRECISION, True,
    )  # fmt: skip

    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    out_rows = (query_start + row_token).to(
        tl.int64
    ) * out_stride_token + row_head * out_stride_head
    tl.store(
        out_ptr + out_rows[:, None] + dims[None, :], result.to(out_ptr.dtype.element_ty), mask=valid
    )


@triton.jit
def _split_bounds(
    seq_len,
    num_splits,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MIN_TILES: tl.constexpr,
):
    """First key tile that a one-token query sees, end tile, and tiles per split."""
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(seq_len - WINDOW, 0) // BLOCK_N
    end = tl.cdiv(seq_len, BLOCK_N)
    return begin, end, tl.maximum(tl.cdiv(end - begin, num_splits), MIN_TILES)


@triton.jit(do_not_specialize=["max_blocks"])
def decode(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    query_start_ptr,
    seq_lens_ptr,
    table_ptr,
    max_blocks,
    scale,
    q_stride_token,
    q_stride_head,
    out_stride_token,
    out_stride_head,
    stride_block,
    stride_slot,
    stride_head,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
):
    """Grid (R, Hkv, SPLITS): requests with one query token.

    Writes `out` where SPLITS is 1, else partial [R, Hq, SPLITS, D] and lse [R, Hq, SPLITS].
    """
    req = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    query_start = tl.load(query_start_ptr + req)
    if tl.load(query_start_ptr + req + 1) - query_start != 1:
        return
    seq_len = tl.minimum(tl.load(seq_lens_ptr + req), max_blocks * BLOCK_SIZE)
    begin, end, share = _split_bounds(seq_len, SPLITS, BLOCK_N, WINDOW, MIN_TILES)
    begin += split * share
    if SPLITS > 1 and begin >= end:
        return
    end = tl.minimum(begin + share, end)

    lane = tl.arange(0, BLOCK_M)
    row_head = head * GROUP + lane
    dims = tl.arange(0, BLOCK_D)
    valid = (lane < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_row = q_ptr + query_start.to(tl.int64) * q_stride_token
    q = tl.load(q_row + row_head[:, None] * q_stride_head + dims[None, :], mask=valid, other=0.0)
    position = tl.zeros([BLOCK_M], tl.int32) + seq_len - 1

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc, top, total = _attend_tiles(
        acc, top, total, q, position, begin, end, seq_len,
        k_ptr + head * stride_head, v_ptr + head * stride_head,
        table_ptr + req.to(tl.int64) * table_stride, scale, stride_block, stride_slot,
        HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOW, SOFTCAP, PRECISION, True,
    )  # fmt: skip
    total_or_one = tl.where(total == 0, 1.0, total)
    result = acc / total_or_one[:, None]
    if SPLITS == 1:
        out_row = out_ptr + query_start.to(tl.int64) * out_stride_token
        out = out_row + row_head[:, None] * out_stride_head + dims[None, :]
        tl.store(out, result.to(out_ptr.dtype.element_ty), mask=valid)
    else:
        num_heads = tl.num_programs(1) * GROUP
        place = (req.to(tl.int64) * num_heads + row_head) * SPLITS + split
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dims[None, :], result, mask=valid)
        tl.store(lse_ptr + place, top + tl.log2(total_or_one), mask=lane < GROUP)


@triton.jit(do_not_specialize=["max_blocks"])
def reduce(
    partial_ptr,
    lse_ptr,
    out_ptr,
    query_start_ptr,
    seq_lens_ptr,
    max_blocks,
    out_stride_token,
    out_stride_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
):
    """Grid (R, Hq): joins the splits that `decode` filled; it reads no others."""
    req = tl.program_id(0)
    head = tl.program_id(1)
    query_start = tl.load(query_start_ptr + req)
    if tl.load(query_start_ptr + req + 1) - query_start != 1:
        return
    seq_len = tl.minimum(tl.load(seq_lens_ptr + req), max_blocks * BLOCK_SIZE)
    begin, end, share = _split_bounds(seq_len, SPLITS, BLOCK_N, WINDOW, MIN_TILES)
    split = tl.arange(0, SPLITS)
    filled = begin + split * share < end
    dims = tl.arange(0, BLOCK_D)

    place = (req.to(tl.int64) * tl.num_programs(1) + head) * SPLITS + split
    lse = tl.load(lse_ptr + place, mask=filled, other=float("-inf"))
    part = tl.load(
        partial_ptr + place[:, None] * HEAD_DIM + dims[None, :],
        mask=filled[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    top = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight, 0)
    result = tl.sum(part * weight[:, None], 0) / tl.where(total == 0, 1.0, total)
    out = out_ptr + query_start.to(tl.int64) * out_stride_token + head * out_stride_head + dims
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
