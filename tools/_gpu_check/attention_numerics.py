"""Each attention backend on padded batches of every mix against a reference in float64: planned for
one step, and as captured graphs use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

import attention_backends
from attention_backends import (
    AttentionBackend,
    AttentionShape,
    Bucket,
    LayerKV,
    Support,
)
from tools._gpu_check.able import able_backends
from tools._gpu_check.attention_batches import (
    attention_in_float64,
    empty_batch,
    make_batch,
    num_blocks_of,
)
from tools._gpu_check.attention_steps import buckets_of, mixes_of, steps_of
from tools._gpu_check.bucket_sweep import splits_of
from tools._gpu_check.captured import capture
from tools._gpu_check.op_numerics import error_of
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale

LIMITS = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 1e-2}
"""Of ||out - reference|| / ||reference||; the weights of the values are rounded too."""


def check_backends(scale: Scale, report: Report, deadline: Deadline) -> None:
    """A line for each backend, shape and mix, and for each kind of captured step."""
    for kind, shape in shapes_of(scale).items():
        for name, backend, block_size in able_backends([shape], scale, "attention", report):
            support = attention_backends.examine_layers(backend, [shape], block_size, scale.device)
            tried = _Tried(backend, shape, support, block_size, scale)
            cases: dict[str, Callable[[], _Found]] = {
                mix: lambda tried=tried, lens=lens: tried.planned(*lens)
                for mix, lens in mixes_of(scale).items()
            }
            for graph_kind, buckets in buckets_of(support, scale, is_first=kind == "full").items():
                cases[f"captured {graph_kind}"] = lambda tried=tried, some=buckets: tried.captured(
                    some
                )
            for case, run in cases.items():
                line = f"{name} {kind} {case}"
                if deadline.is_over:
                    report.skip("attention", line, "time limit")
                    continue
                with report.guard("attention", line):
                    found, limit = run(), LIMITS[shape.dtype]
                    report.check(
                        "attention",
                        line,
                        found.error <= limit,
                        f"error above {limit:g}",
                        error=found.error,
                        **found.about,
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


class _Found(NamedTuple):
    error: float
    about: dict[str, object]


@dataclass(slots=True)
class _Tried:
    """One backend with one shape."""

    backend: type[AttentionBackend]
    shape: AttentionShape
    support: Support
    block_size: int
    scale: Scale
    made: AttentionBackend = field(init=False)

    def __post_init__(self) -> None:
        self.made = self.backend([self.shape], self.block_size, self.scale.device)

    def planned(self, query_lens: list[int], seq_lens: list[int]) -> _Found:
        """A step that is planned by itself."""
        batch = make_batch(query_lens, seq_lens, self.block_size, self.scale.device)
        kv = self._random_kv(num_blocks_of(seq_lens, self.block_size))
        q = self._random_q(int(batch.query_start_loc_cpu[-1]))
        out = torch.full_like(q, torch.nan)
        self.made.attend(0, q, kv, out, self.made.plan(batch))
        return _Found(self._error(q, kv, batch, out), {})

    def captured(self, buckets: Sequence[Bucket]) -> _Found:
        """Steps that are replayed in each bucket, whose plan was made for its captured step."""
        max_keys = self.scale.attention_keys
        steps = {bucket: list(steps_of(bucket, self.scale)) for bucket in buckets}
        needed = [
            num_blocks_of(lens[1], self.block_size) for each in steps.values() for lens in each
        ]
        kv = self._random_kv(max(needed))
        self.made.reserve(buckets, max_keys)
        errors: list[float] = []
        splits: set[int] = set()
        for bucket in buckets:
            static = empty_batch(bucket, max_keys, self.block_size, self.scale.device)
            q = self._random_q(bucket.num_tokens)
            out = torch.full_like(q, torch.nan)
            plan = self.made.open_bucket(bucket, static)
            splits |= splits_of(plan)

            def attend(q: Tensor = q, out: Tensor = out, plan: object = plan) -> None:
                self.made.attend(0, q, kv, out, plan)

            replay = capture(attend, self.scale.device)
            for lens in steps[bucket]:
                batch = make_batch(
                    *lens, self.block_size, self.scale.device, bucket=bucket, max_keys=max_keys
                )
                q.copy_(self._random_q(len(q)))
                out.fill_(torch.nan)
                self.made.refresh(plan, batch)
                replay()
                errors.append(self._error(q, kv, batch, out))
        about = {
            "buckets": len(buckets),
            "steps": len(errors),
            "kv_classes": sorted({bucket.kv_class for bucket in buckets} - {0}),
            "splits": sorted(splits),
        }
        return _Found(max(errors), about)

    def _random_kv(self, num_blocks: int) -> LayerKV:
        (kv,) = self.made.allocate_kv(num_blocks)
        for cache in kv:
            cache[attention_backends.NUM_RESERVED_BLOCKS :].normal_()
        return kv

    def _random_q(self, num_tokens: int) -> Tensor:
        sizes = (num_tokens, self.shape.num_q_heads, self.shape.head_dim)
        return torch.randn(sizes, device=self.scale.device).to(self.shape.dtype)

    def _error(
        self, q: Tensor, kv: LayerKV, batch: attention_backends.AttentionBatch, out: Tensor
    ) -> float:
        """Of the real rows; padding rows must be finite."""
        reference = attention_in_float64(q, kv, batch, self.shape)
        error = error_of(out[: batch.num_tokens], reference[: batch.num_tokens])
        return error if bool(out.isfinite().all()) else float("inf")
