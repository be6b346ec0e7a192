"""Each op on random inputs against its definition in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_backends import LayerKV
from runtime import ops
from runtime.ops import Rotation
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale

EPS = 1e-6
LIMITS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}
"""Of ||out - reference|| / ||reference||: a result rounded once, some two or three times."""
HEADS, KV_HEADS, DIM = 32, 8, 128


def error_of(out: Tensor, reference: Tensor) -> float:
    """||out - reference|| / ||reference||; NaN counts as infinite."""
    difference = (out.double() - reference).norm() / reference.norm()
    return float(difference.nan_to_num(torch.inf))


def check_ops(scale: Scale, report: Report, deadline: Deadline) -> None:
    """A line for each op and type."""
    for dtype in LIMITS:
        generator = torch.Generator(scale.device).manual_seed(1)

        def random(
            *shape: int, dtype: torch.dtype = dtype, generator: object = generator
        ) -> Tensor:
            return torch.randn(*shape, generator=generator, device=scale.device).to(dtype)

        for name, run in CASES.items():
            line = f"{name} {str(dtype).removeprefix('torch.')}"
            if deadline.is_over:
                report.skip("ops", line, "time limit")
                continue
            error = run(random, scale)
            limit = LIMITS[dtype]
            report.check("ops", line, error <= limit, f"error above {limit:g}", error=error)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def _turn(scale: Scale, dtype: torch.dtype) -> Rotation:
    positions = torch.arange(scale.op_tokens, device=scale.device) * 5
    half = torch.arange(0, DIM, 2, device=scale.device)
    return ops.rotation(positions, (1e6 ** (-half / DIM)).float(), 1.0, dtype)


def _turned(x: Tensor, turn: Rotation) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = turn.cos[..., :half].double(), turn.sin[..., half:].double()
    low, high = x.double().split(half, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def _rms_norm(random: Callable[..., Tensor], scale: Scale) -> float:
    x, weight = random(scale.op_tokens, scale.op_width), random(scale.op_width)
    return error_of(ops.rms_norm(x, weight, EPS), _normed(x, weight))


def _add_rms_norm(random: Callable[..., Tensor], scale: Scale) -> float:
    x, residual = random(scale.op_tokens, scale.op_width), random(scale.op_tokens, scale.op_width)
    weight, total = random(scale.op_width), x.double() + residual.double()
    out = ops.add_rms_norm(x, residual, weight, EPS)
    return max(error_of(residual, total), error_of(out, _normed(residual, weight)))


def _norm_and_rotary(random: Callable[..., Tensor], scale: Scale) -> float:
    fused = random(scale.op_tokens, HEADS + 2 * KV_HEADS, DIM)
    x, weight = fused[:, : HEADS + KV_HEADS], random(HEADS + KV_HEADS, DIM)
    turn, v = _turn(scale, fused.dtype), fused[:, HEADS + KV_HEADS :].clone()
    reference = _turned(_normed(x, weight), turn)
    error = error_of(ops.norm_and_rotary(x, turn, weight, EPS), reference)
    return error if torch.equal(fused[:, HEADS + KV_HEADS :], v) else float("inf")


def _rotary(random: Callable[..., Tensor], scale: Scale) -> float:
    x = random(scale.op_tokens, HEADS, DIM)
    turn = _turn(scale, x.dtype)
    reference = _turned(x, turn)
    return error_of(ops.norm_and_rotary(x, turn, None, EPS), reference)


def _silu_and_mul(random: Callable[..., Tensor], scale: Scale) -> float:
    gate_up = random(scale.op_tokens, 3 * scale.op_width)
    gate, up = gate_up.double().chunk(2, -1)
    return error_of(ops.silu_and_mul(gate_up), gate * gate.sigmoid() * up)


def _write_kv(random: Callable[..., Tensor], scale: Scale) -> float:
    tokens, block = scale.op_tokens, 16
    fused = random(tokens, 2 * KV_HEADS, DIM)
    num_blocks = tokens // block + 4
    kv = LayerKV(*random(2, num_blocks, block, KV_HEADS, DIM))
    before = [cache.clone() for cache in kv]
    places = torch.randperm((num_blocks - 2) * block, device=fused.device)[:tokens] + 2 * block
    ops.write_kv(fused[:, :KV_HEADS], fused[:, KV_HEADS:], kv, places)
    wrong = 0
    for cache, old, new in zip(kv, before, fused.split(KV_HEADS, 1), strict=True):
        expected = old.flatten(0, 1)
        expected[places] = new
        wrong += int((cache.flatten(0, 1) != expected).sum())
    return float("inf") if wrong else 0.0


def _argmax(random: Callable[..., Tensor], scale: Scale) -> float:
    logits = random(min(64, scale.op_tokens), 151_936 // 128 * scale.op_width // 32)
    logits[0] = 1.0
    logits[1, 7] = torch.nan
    top, ids = ops.argmax(logits)
    values = logits.double()
    best = (values == values.amax(1, keepdim=True)).int().argmax(1)
    right = torch.equal(ids[2:], best[2:]) and int(ids[0]) == 0 and bool(top[1].isnan())
    right &= torch.equal(top[2:], logits[2:].amax(1).float())
    return 0.0 if right else float("inf")


CASES: dict[str, Callable[[Callable[..., Tensor], Scale], float]] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "norm_and_rotary": _norm_and_rotary,
    "rotary": _rotary,
    "silu_and_mul": _silu_and_mul,
    "write_kv": _write_kv,
    "argmax": _argmax,
}
