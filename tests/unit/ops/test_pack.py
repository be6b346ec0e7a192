"""Choosing the form of a weight: what is packed, what stays plain, and that one copy is kept."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch

from attention_backends import NativeBuildError, NativeSource
from runtime.ops import Embedding, GatedLinear, Linear, dispatch, norm, pack
from runtime.ops.native import library
from runtime.ops.native.paths import Paths
from runtime.ops.weights import Int8Weight, PackedWeight, PlainWeight, quantize
from tests.unit.ops.native_ops import check_near, needs_compiler, random


def layers_of(dtype: torch.dtype) -> list[Linear]:
    return [
        Linear(random(96, 64, dtype=dtype), random(96, dtype=dtype, seed=1)),
        GatedLinear(random(64, 64, dtype=dtype, seed=2)),
        Linear(random(32, 40, dtype=dtype, seed=3)),
    ]


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_bfloat16_is_packed_where_a_tile_of_inputs_is_whole(int8: bool) -> None:
    layers = layers_of(torch.bfloat16)
    xs = [random(5, layer.form.plain().shape[1], dtype=torch.bfloat16) for layer in layers]
    expected = [layer(x) for layer, x in zip(layers, xs, strict=True)]
    pack(layers, int8=int8)
    rest = Int8Weight if int8 else PlainWeight
    assert [type(layer.form) for layer in layers] == [PackedWeight, PackedWeight, rest]
    for layer, x, plain in zip(layers, xs, expected, strict=True):
        check_near(layer(x), plain, 3e-2 if int8 else 1.2e-2)
        check_near(layer(x.T.contiguous().T), layer(x), 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_types_stay_in_torch(dtype: torch.dtype) -> None:
    layers = layers_of(dtype)
    pack(layers, int8=False)
    assert all(isinstance(layer.form, PlainWeight) for layer in layers)
    expected = [layer.form.plain() for layer in layers]
    pack(layers, int8=True)
    for layer, plain in zip(layers, expected, strict=True):
        assert isinstance(layer.form, Int8Weight)
        assert layer.form.plain().dtype == dtype
        assert (layer.form.plain() - plain).abs().max() <= plain.abs().max() / 250
        assert layer.form.num_bytes < plain.nbytes * 0.7


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
def test_one_copy_is_kept_and_the_embedding_shares_the_head(int8: bool) -> None:
    head = Linear(random(70, 64, dtype=torch.bfloat16))
    embedding, plain = Embedding(head), head.form.plain()
    ids, storage = torch.tensor([69, 3]), weakref.ref(plain)
    rows = plain[ids]
    pack([head], int8=int8)
    del plain
    gc.collect()
    assert storage() is None
    check_near(embedding(ids), rows, 1e-2 if int8 else 0.0)
    assert head.form.num_bytes == (96 * 64 + 96 * 8 if int8 else 96 * 64 * 2)


def test_quantize_is_symmetric_with_a_scale_for_each_output() -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [-1e-3, 5e-4, 0.0]])
    integers, scales = quantize(weight)
    assert integers.tolist() == [[64, -127, 32], [0, 0, 0], [-127, 64, 0]]
    torch.testing.assert_close(scales, torch.tensor([2 / 127, 0.0, 1e-3 / 127]))


def test_without_a_compiler_the_twins_serve_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(source: NativeSource) -> None:
        raise NativeBuildError("no C++ compiler")

    monkeypatch.setattr(library, "load_library", refuse)
    library.native_ops.cache_clear()
    try:
        layers = layers_of(torch.bfloat16)
        with caplog.at_level(logging.WARNING):
            pack(layers, int8=False)
            x, weight = random(3, 16), random(16, seed=1)
            out = dispatch.rms_norm(x, weight, 1e-5)
        assert all(isinstance(layer.form, PlainWeight) for layer in layers)
        assert torch.equal(out, norm.rms_norm(x, weight, 1e-5))
        assert len(caplog.records) == 1
        assert "plain torch, which is slower: no C++ compiler" in caplog.text
    finally:
        library.native_ops.cache_clear()


@needs_compiler
def test_rows_above_the_crossover_go_to_the_library_with_amx(monkeypatch) -> None:
    layers = layers_of(torch.bfloat16)[:2]
    xs = random(300, 64, dtype=torch.bfloat16)
    expected = [layer(xs) for layer in layers]
    pack(layers, int8=False)
    calls = []
    monkeypatch.setattr(
        "runtime.ops.weights.run_native",
        lambda op, *args: calls.append(op) or dispatch.run_native(op, *args),
    )
    for layer in layers:
        assert isinstance(layer.form, PackedWeight)
        monkeypatch.setattr(layer.form, "paths", Paths(tiles_from=256))
    for layer, plain in zip(layers, expected, strict=True):
        check_near(layer(xs), plain, 0.0)
        layer(xs[:255])
    assert calls == ["unpack", "linear", "unpack", "linear"]
