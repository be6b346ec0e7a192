"""Two backends over one KV cache: which serves what, and when they are refused."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import attention_backends._choose as choose
from attention_backends import (
    BackendChoiceError,
    Bucket,
    GraphSupport,
    LayerKV,
    Support,
    choose_pair,
)
from tests.unit.attention_backends.reference import CPU, make_shape

SHAPES = [make_shape(), make_shape()]
FIRST = Support(True, graph=GraphSupport.RAGGED)


class Call(NamedTuple):
    backend: str
    what: str
    argument: object


def fake_backend(name, support=FIRST, layout=(0, 1, 2, 3)):
    class Backend:
        calls: list = []  # noqa: RUF012

        def __init__(self, shapes, block_size, device):
            self.block_size = block_size

        @classmethod
        def preference(cls, device):
            return 1

        @classmethod
        def examine(cls, shape, block_size, device):
            return support(block_size) if callable(support) else support

        def allocate_kv(self, num_blocks):
            sizes = (num_blocks, self.block_size, 2, 8)
            order = [sizes[i] for i in layout]
            back = [layout.index(i) for i in range(4)]
            tensors = [torch.zeros(order).permute(back) for _ in range(4)]
            return [LayerKV(*tensors[:2]), LayerKV(*tensors[2:])]

        def plan(self, batch):
            self.calls.append(Call(name, "plan", batch.max_query_len))
            return f"{name} plan"

        def attend(self, layer, q, kv, out, plan):
            self.calls.append(Call(name, "attend", plan))

        def reserve(self, buckets, max_model_len):
            self.calls.append(Call(name, "reserve", [b.kind for b in buckets]))
            return 10 * len(buckets)

        def open_bucket(self, bucket, batch):
            self.calls.append(Call(name, "open", bucket.kind))
            return f"{name} {bucket.kind}"

        def refresh(self, plan, batch):
            self.calls.append(Call(name, "refresh", plan))

    Backend.name = name
    return Backend


@pytest.fixture
def install(monkeypatch):
    def install(*classes):
        by_name = {c.name: c for c in classes}
        for c in classes:
            c.calls = classes[0].calls
        monkeypatch.setattr(choose, "backend_names", lambda: sorted(by_name))
        monkeypatch.setattr(
            choose.importlib,
            "import_module",
            lambda name: SimpleNamespace(Backend=by_name[name.split(".")[1]]),
        )
        return classes[0].calls

    return install


def test_each_serves_its_kind_of_step(install):
    calls = install(fake_backend("p"), fake_backend("d"))
    choice = choose_pair("p", "d", SHAPES, 4, CPU)
    assert choice.backend.name == "p+d"
    pair = choice.backend(SHAPES, 4, CPU)
    for max_query_len in (1, 7):
        plan = pair.plan(SimpleNamespace(max_query_len=max_query_len))
        pair.attend(0, None, None, None, plan)
    buckets = [Bucket(kind, 8, 8) for kind in ("decode", "ragged", "decode")]
    assert pair.reserve(buckets, 64) == 30
    for bucket in buckets[:2]:
        pair.refresh(pair.open_bucket(bucket, None), None)
    assert calls == [
        Call("d", "plan", 1),
        Call("d", "attend", "d plan"),
        Call("p", "plan", 7),
        Call("p", "attend", "p plan"),
        Call("d", "reserve", ["decode", "decode"]),
        Call("p", "reserve", ["ragged"]),
        Call("d", "open", "decode"),
        Call("d", "refresh", "d decode"),
        Call("p", "open", "ragged"),
        Call("p", "refresh", "p ragged"),
    ]


@pytest.mark.parametrize(
    ("prefill", "decode", "together"),
    [
        ("NONE", "NONE", "NONE"),
        ("NONE", "ONE_TOKEN", "ONE_TOKEN"),
        ("NONE", "RAGGED", "ONE_TOKEN"),
        ("RAGGED", "NONE", "NONE"),
        ("RAGGED", "ONE_TOKEN", "RAGGED"),
        ("UNIFORM", "UNIFORM", "ONE_TOKEN"),
    ],
)
def test_graphs_are_what_both_allow(install, prefill, decode, together):
    install(
        fake_backend("p", Support(True, graph=GraphSupport[prefill])),
        fake_backend("d", Support(True, graph=GraphSupport[decode], bucketed_kv=True)),
    )
    support = choose_pair("p", "d", SHAPES, 4, CPU).support
    assert support.graph is GraphSupport[together]
    assert support.bucketed_kv
    assert not support.host_plan


def test_one_name_is_one_backend(install):
    only = fake_backend("p")
    install(only)
    assert choose_pair("p", "auto", SHAPES, 4, CPU).backend is only


def needs(*sizes, prefers):
    def support(block_size):
        able = block_size in sizes
        return Support(able, "" if able else "wrong blocks", preferred_block_size=prefers)

    return support


def test_a_block_size_that_both_serve_is_found(install):
    install(
        fake_backend("p", needs(16, 128, prefers=16)), fake_backend("d", needs(128, prefers=128))
    )
    assert choose_pair("p", "d", SHAPES, None, CPU).block_size == 128


def test_no_block_size_that_both_serve(install):
    install(fake_backend("p", needs(16, prefers=16)), fake_backend("d", needs(64, prefers=64)))
    with pytest.raises(BackendChoiceError) as caught:
        choose_pair("p", "d", SHAPES, None, CPU)
    assert str(caught.value) == (
        "attention.prefill_backend: p and attention.decode_backend: d prefer other block sizes "
        "(blocks of 16 do not suit d: wrong blocks; blocks of 64 do not suit p: wrong blocks); "
        "set cache.block_size to one that both serve"
    )
    with pytest.raises(BackendChoiceError, match=r"^attention.decode_backend: d cannot serve"):
        choose_pair("p", "d", SHAPES, 16, CPU)


def test_another_layout_is_refused(install):
    install(fake_backend("p"), fake_backend("d", layout=(0, 2, 1, 3)))
    with pytest.raises(BackendChoiceError) as caught:
        choose_pair("p", "d", SHAPES, 4, CPU)
    assert str(caught.value) == (
        "attention.prefill_backend: p and attention.decode_backend: d cannot share a KV cache: "
        "stride of K in layer 0 is (64, 16, 8, 1) with p, (64, 8, 32, 1) with d; name two that lay "
        "it out alike, or one for both"
    )


def test_an_unknown_name_says_of_which_key():
    with pytest.raises(BackendChoiceError, match=r"attention.decode_backend: .*did you mean"):
        choose_pair("torch_paged", "torch_page", SHAPES, 4, CPU)
