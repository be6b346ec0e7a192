"""The Triton ops in Triton's interpreter on the CPU, against definitions and twins.

The interpreter is chosen when triton is imported, so `test_triton_ops.py` runs this file in a
process of its own; the name keeps it out of an ordinary collection.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from attention_backends import LayerKV, choose_backend
from runtime.ops import activation, kv_write, norm, scores
from runtime.ops import triton_ops as ops
from runtime.ops.rotary import Rotation, norm_and_rotary, rotation

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_triton_ops.py"

torch.set_num_threads(1)
EPS = 1e-5
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: str(d).removeprefix("torch."))
TOKENS = pytest.mark.parametrize("num_tokens", [0, 1, 3])


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(actual: Tensor, expected: Tensor) -> None:
    """To a rounding of the result's type, relative to the row's size."""
    assert actual.shape == expected.shape
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def turned(x: Tensor, turn: Rotation) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = turn.cos[..., :half].double(), turn.sin[..., half:].double()
    low, high = x.double().split(half, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def make_turn(num_tokens: int, dim: int, dtype: torch.dtype) -> Rotation:
    positions = torch.arange(num_tokens) * 37 + 5
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    return rotation(positions, frequencies, 1.25, dtype)


@DTYPES
@TOKENS
@pytest.mark.parametrize("hidden", [8, 24, 1000])
def test_rms_norm(dtype: torch.dtype, num_tokens: int, hidden: int) -> None:
    wide = random(num_tokens, 2 * hidden, dtype=dtype)
    x, weight = wide[:, hidden:], random(hidden, dtype=dtype, seed=1)
    before = wide.clone()
    out = ops.rms_norm(x, weight, EPS)
    assert out.dtype == dtype
    near(out, normed(x, weight))
    assert torch.equal(wide, before)


@DTYPES
@TOKENS
def test_add_rms_norm(dtype: torch.dtype, num_tokens: int) -> None:
    x, weight = random(num_tokens, 24, dtype=dtype), random(24, dtype=dtype, seed=2)
    residual = random(num_tokens, 24, dtype=dtype, seed=1)
    before, total = x.clone(), x.double() + residual.double()
    out = ops.add_rms_norm(x, residual, weight, EPS)
    near(residual, total)
    near(out, normed(residual, weight))
    assert torch.equal(x, before)


def test_squares_of_large_half_values_do_not_overflow() -> None:
    x = torch.full((1, 16), 3e4, dtype=torch.float16)
    near(ops.rms_norm(x, torch.ones(16, dtype=torch.float16), EPS), torch.ones(1, 16))


@DTYPES
@TOKENS
@pytest.mark.parametrize(("heads", "dim"), [(3, 8), (40, 128), (2, 24), (1, 2)])
def test_heads(dtype: torch.dtype, num_tokens: int, heads: int, dim: int) -> None:
    fused = random(num_tokens, heads + 2, dim, dtype=dtype)
    x, weight = fused[:, :heads], random(heads, dim, dtype=dtype, seed=1)
    turn, before = make_turn(num_tokens, dim, dtype), fused.clone()
    near(ops.head_rms_norm(x, weight, EPS), normed(x, weight))
    near(ops.rotary(x, turn), turned(x, turn))
    assert torch.equal(fused, before), "only norm_and_rotary writes over its input"

    expected = turned(normed(x, weight), turn)
    out = ops.norm_and_rotary(x, turn, weight, EPS)
    assert out is x
    near(out, expected)
    assert torch.equal(fused[:, heads:], before[:, heads:]), "v is not turned"


def test_rotation_without_a_norm() -> None:
    x, turn = random(3, 4, 16), make_turn(3, 16, torch.float32)
    expected = norm_and_rotary(x.clone(), turn, None, EPS)
    near(ops.norm_and_rotary(x, turn, None, EPS), expected)


@DTYPES
@TOKENS
@pytest.mark.parametrize(("heads", "dim"), [(2, 16), (3, 24)])
@pytest.mark.parametrize("heads_first", [False, True])
def test_write_kv(
    dtype: torch.dtype, num_tokens: int, heads: int, dim: int, heads_first: bool
) -> None:
    fused = random(num_tokens, 3 * heads, dim, dtype=dtype)
    k, v = fused[:, heads : 2 * heads], fused[:, 2 * heads :]
    slots = torch.tensor([13, 4, 30])[:num_tokens]
    shape = (5, heads, 8, dim) if heads_first else (5, 8, heads, dim)
    given, expected = torch.zeros(2, *shape, dtype=dtype), torch.zeros(2, *shape, dtype=dtype)

    def layer(caches: Tensor) -> LayerKV:
        return LayerKV(*(c.transpose(1, 2) if heads_first else c for c in caches))

    ops.write_kv(k, v, layer(given), slots)
    kv_write.write_kv(k, v, layer(expected), slots)
    assert torch.equal(given, expected)


@DTYPES
@TOKENS
@pytest.mark.parametrize("inner", [8, 24, 1500])
def test_silu_and_mul(dtype: torch.dtype, num_tokens: int, inner: int) -> None:
    gate_up = random(num_tokens, 2 * inner, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    near(ops.silu_and_mul(gate_up), gate * gate.sigmoid() * up)


@DTYPES
@pytest.mark.parametrize("width", [1, 7, 4096, 4097, 9001])
def test_argmax(dtype: torch.dtype, width: int) -> None:
    logits = random(5, width + 3, dtype=dtype)[:, :width]
    logits[1] = 1.0
    logits[2] = -torch.inf
    logits[3, width // 2] = torch.inf
    top, ids = ops.argmax(logits)
    want_top, want_ids = scores.argmax(logits)
    assert ids.dtype == torch.int64
    assert top.dtype == torch.float32
    assert torch.equal(ids, want_ids)
    assert torch.equal(top, want_top)


@pytest.mark.parametrize("place", [0, 4095, 4096, 8000])
def test_argmax_says_nan(place: int) -> None:
    logits = random(2, 8001)
    logits[0, place] = logits[0, 8000] = torch.nan
    top, ids = ops.argmax(logits)
    assert top.isnan().tolist() == [True, False]
    assert ids.tolist() == [place, int(logits[1].argmax())]
    assert ops.argmax(torch.empty(0, 5))[0].shape == (0,)


def test_an_emulated_capture_sees_every_op() -> None:
    """Captured once, replayed over other values: no launch may be missing from the recording."""
    from graphs._recorders.emulated import EmulatedRecorder

    x, residual, weight = random(3, 16), random(3, 16, seed=1), random(16, seed=2)
    qkv, head_weight = random(3, 4, 8, seed=3), random(3, 8, seed=4)
    turn, slots = make_turn(3, 8, torch.float32), torch.tensor([3, 9, 1])
    kv = LayerKV(torch.zeros(3, 4, 1, 8), torch.zeros(3, 4, 1, 8))
    out = torch.zeros(3, 16)
    inputs = {"x": x, "residual": residual, "qkv": qkv}
    twins = SimpleNamespace(
        **{n: getattr(norm, n) for n in ("rms_norm", "add_rms_norm")},
        norm_and_rotary=norm_and_rotary,
        silu_and_mul=activation.silu_and_mul,
        write_kv=kv_write.write_kv,
    )

    def step(lib: object) -> None:
        heads = lib.norm_and_rotary(qkv[:, :3], turn, head_weight, EPS)
        lib.write_kv(heads[:, 2:], qkv[:, 3:], kv, slots)
        hidden = lib.rms_norm(lib.add_rms_norm(x, residual, weight, EPS), weight, EPS)
        out.copy_(torch.cat([lib.silu_and_mul(hidden), heads[:, 0]], 1))

    recorder = EmulatedRecorder(torch.device("cpu"))
    with torch.inference_mode():
        with recorder.session(), recorder.graph():
            recorder.begin()
            step(ops)
            part = recorder.end()
        fresh = {name: random(*t.shape, seed=9) for name, t in inputs.items()}

        def run(replay: bool) -> list[Tensor]:
            for name, tensor in inputs.items():
                tensor.copy_(fresh[name])
            for tensor in (out, *kv):
                tensor.zero_()
            if replay:
                recorder.prepare_replay()
                part.replay()
            else:
                step(twins)
            return [t.clone() for t in (out, *kv, residual)]

        for replayed, expected in zip(run(True), run(False), strict=True):
            near(replayed, expected)
            assert expected.any()


def test_a_model_runs_on_them_under_emulated_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where `dispatch` picks them: mixed steps, captured and replayed, on a model that
    has head norms and grouped heads; its logits are those of the twins."""
    from runtime.ops import dispatch
    from tools._gpu_check.exactness import Subject
    from tools._gpu_check.scale import TINY, spec_of, tiny
    from tools._gpu_check.subject import load

    sizes = {"head_dim": 16, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    scale = replace(
        tiny(torch.device("cpu")),
        exact_lengths=((23, 3), (1, 4), (30, 3), (5, 2)),
        exact_context=64,
        exact_rows=4,
        exact_sizes=(4, 16, 32),
    )
    loaded = load(spec_of({**TINY, **sizes, **heads}), torch.device("cpu"))
    backend = choose_backend("torch_paged", loaded.attention_shapes, 16, loaded.device).backend
    subject, used = Subject(scale, loaded, backend, 16), set()

    class Noted:
        def __getattr__(self, name: str) -> object:
            used.add(name)
            return getattr(ops, name)

    monkeypatch.setattr(dispatch, "_kernels_of", lambda device_type: None)
    twin, _ = subject.run("eager", "eager", None)
    monkeypatch.setattr(dispatch, "_kernels_of", lambda device_type: Noted())
    for mode in ("eager", "emulated"):
        trace, _ = subject.run(mode, mode, twin.tokens)
        assert trace.tokens == twin.tokens
        for given, expected in zip(trace.logits, twin.logits, strict=True):
            torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
    assert used >= {"rms_norm", "add_rms_norm", "norm_and_rotary", "silu_and_mul", "write_kv"}
    assert {"decode", "segmented"} <= {name.partition("(")[0] for name in trace.buckets}
