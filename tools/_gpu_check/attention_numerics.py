"""Each attention backend on padded batches of every mix against a reference in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import attention_backends
from attention_backends import AttentionBatch, AttentionShape, BackendChoiceError, LayerKV
from tools._gpu_check.op_numerics import error_of
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale

LIMITS = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 1e-2}
"""Of ||out - reference|| / ||reference||; the weights of the values are rounded too."""
MIXES = {
    "decode": ([1, 1, 1, 1], [1, 65, 512, 4000]),
    "prefill": ([300, 41], [300, 41]),
    "chunks": ([128, 7], [1500, 2049]),
    "mixed": ([1, 200, 1, 5], [777, 1200, 16, 5]),
}
"""Query and key tokens of each request."""
PADDING = 3
"""Tokens of the tail request of batches that are not all of one token."""


def able_backends(
    shapes: Sequence[AttentionShape], scale: Scale, section: str, report: Report
) -> list[tuple[str, type[attention_backends.AttentionBackend], int]]:
    """(name, class, block size) of every backend that serves the shapes here, a line for others."""
    able = []
    for name in attention_backends.backend_names():
        if scale.backends is not None and name not in scale.backends:
            continue
        try:
            choice = attention_backends.choose_backend(name, shapes, None, scale.device)
        except BackendChoiceError:
            reasons = attention_backends.examine_all(shapes, None, scale.device)
            report.skip(section, name, reasons[name].reason)
            continue
        able.append((name, choice.backend, choice.block_size))
    return sorted(able, key=lambda entry: -entry[1].preference(scale.device))


def check_backends(scale: Scale, report: Report, deadline: Deadline) -> None:
    """A line for each backend, shape and mix."""
    for kind, shape in shapes_of(scale).items():
        for name, backend, block_size in able_backends([shape], scale, "attention", report):
            made = backend([shape], block_size, scale.device)
            for mix, (query_lens, seq_lens) in MIXES.items():
                line = f"{name} {kind} {mix}"
                if deadline.is_over:
                    report.skip("attention", line, "time limit")
                    continue
                if scale.op_tokens < 100:  # a short trial
                    query_lens, seq_lens = [q % 7 + 1 for q in query_lens], [9, 33, 16, 20]
                    query_lens = [1] * 4 if mix == "decode" else query_lens
                    seq_lens = seq_lens[: len(query_lens)]
                error = _run(made, shape, query_lens, seq_lens, block_size, scale.device)
                limit = LIMITS[shape.dtype]
                report.check(
                    "attention", line, error <= limit, f"error above {limit:g}", error=error
                )


def shapes_of(scale: Scale) -> dict[str, AttentionShape]:
    """The kinds of layers that are tried."""
    dtype = torch.bfloat16 if scale.device.type == "cuda" else torch.float32

    def shape(window: int | None = None, softcap: float = 0.0, dim: int = 128) -> AttentionShape:
        return AttentionShape(32, 8, dim, dtype, dtype, dim**-0.5, window, softcap)

    return {
        "full": shape(),
        "window": shape(window=600),
        "soft cap": shape(softcap=20.0),
        "head_dim 64": shape(dim=64),
    }


def _run(
    backend: attention_backends.AttentionBackend,
    shape: AttentionShape,
    query_lens: list[int],
    seq_lens: list[int],
    block_size: int,
    device: torch.device,
) -> float:
    batch = make_batch(query_lens, seq_lens, block_size, device)
    num_blocks = int(batch.block_table_cpu.max()) + 1
    (kv,) = backend.allocate_kv(num_blocks)
    for cache in kv:
        cache[2:] = torch.randn(cache[2:].shape, device=device).to(cache.dtype)
    num_tokens = int(batch.query_start_loc_cpu[-1])
    q = torch.randn(num_tokens, shape.num_q_heads, shape.head_dim, device=device).to(shape.dtype)
    out = torch.full_like(q, torch.nan)
    backend.attend(0, q, kv, out, backend.plan(batch))
    reference = attention_in_float64(q, kv, batch, shape)
    error = error_of(out[: batch.num_tokens], reference[: batch.num_tokens])
    return error if bool(out.isfinite().all()) else float("inf")


def make_batch(
    query_lens: list[int], seq_lens: list[int], block_size: int, device: torch.device
) -> AttentionBatch:
    """Requests over blocks in random order; a tail request and an empty one, unless all have one
    token."""
    num_tokens, num_reqs = sum(query_lens), len(query_lens)
    counts = [-(-length // block_size) for length in seq_lens]
    ids = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32) + 2
    if max(query_lens) > 1:
        query_lens, seq_lens = [*query_lens, PADDING, 0], [*seq_lens, PADDING, 0]
    table = np.zeros((len(query_lens), max(counts)), np.int32)
    for row, (start, count) in enumerate(zip(np.cumsum([0, *counts]), counts, strict=False)):
        table[row, :count] = ids[start : start + count]
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    lens = np.array(seq_lens, np.int32)

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return AttentionBatch(
        num_tokens=num_tokens,
        num_reqs=num_reqs,
        query_start_loc=put(starts),
        seq_lens=put(lens),
        block_table=put(table),
        slot_mapping=torch.full((int(starts[-1]),), block_size, device=device),
        query_start_loc_cpu=starts,
        seq_lens_cpu=lens,
        block_table_cpu=table,
        max_query_len=max(query_lens),
        max_seq_len=int(lens.max()),
    )


def attention_in_float64(
    q: Tensor, kv: LayerKV, batch: AttentionBatch, shape: AttentionShape
) -> Tensor:
    """[T, Hq, D] by definition, request by request."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = shape.num_q_heads // shape.num_kv_heads
    for row in range(batch.num_reqs):
        start, end = batch.query_start_loc_cpu[row : row + 2].tolist()
        length = int(batch.seq_lens_cpu[row])
        blocks = batch.block_table[row].long()
        k, v = (cache[blocks].flatten(0, 1)[:length].double() for cache in kv)
        scores = torch.einsum("qhd,khd->hqk", q[start:end].double(), k.repeat_interleave(group, 1))
        scores *= shape.scale
        if shape.softcap:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        place = torch.arange(length - (end - start), length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None, :]
        hidden = key > place
        if shape.window is not None:
            hidden |= key <= place - shape.window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))
    return out
