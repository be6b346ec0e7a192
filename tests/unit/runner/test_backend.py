import re

import pytest

from attention_backends import backend_names, examine_all
from runtime.config import AttentionConfig
from runtime.errors import BackendError
from runtime.runner import choose_backend, choose_backends
from tests.unit.attention_backends.reference import make_shape
from tests.unit.runner.helpers import CPU


def test_an_unknown_backend_is_an_error_of_the_runtime():
    with pytest.raises(BackendError, match="did you mean 'torch_paged'"):
        choose_backend("torch-paged", [make_shape()], 16, CPU)


@pytest.mark.case("AT13")
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("name", backend_names())
def test_each_backend_serves_a_block_size_or_refuses_it_before_any_forward(name, block_size):
    shapes = [make_shape()]
    support = examine_all(shapes, block_size, CPU)[name]
    if support.ok:
        choice = choose_backend(name, shapes, block_size, CPU)
        assert choice.block_size == block_size
        choice.backend(shapes, block_size, CPU)
    else:
        with pytest.raises(BackendError, match=re.escape(f"  {name}: {support.reason}")):
            choose_backend(name, shapes, block_size, CPU)


def test_a_pair_that_cannot_share_its_cache_is_an_error_of_the_runtime():
    config = AttentionConfig(backend="torch_paged", decode_backend="cpu_native")
    if not examine_all([make_shape()], 16, CPU)["cpu_native"].ok:
        pytest.skip("cpu_native is not able here")
    with pytest.raises(BackendError, match=r"cannot share a KV cache: stride of K in layer 0"):
        choose_backends(config, [make_shape()], 16, CPU)


@pytest.mark.parametrize("key", ["prefill_backend", "decode_backend"])
def test_a_pair_with_an_unknown_name_says_of_which_key(key):
    config = AttentionConfig(**{"backend": "torch_paged", key: "torch_pagd"})
    with pytest.raises(BackendError, match=rf"attention.{key}: there is no backend 'torch_pagd'"):
        choose_backends(config, [make_shape()], 16, CPU)


def test_one_backend_for_both():
    for config in (
        AttentionConfig(backend="torch_paged"),
        AttentionConfig(prefill_backend="torch_paged", decode_backend="torch_paged"),
    ):
        choice = choose_backends(config, [make_shape()], 16, CPU)
        assert choice.backend.name == "torch_paged"
