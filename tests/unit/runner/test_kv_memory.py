import pytest
import torch

from runtime.config import RuntimeConfig
from runtime.errors import ConfigError
from runtime.models import read_spec
from runtime.runner import kv_memory
from runtime.runner.kv_memory import size_kv_pool
from tests.unit.runner.helpers import CPU

BLOCK_BYTES = 4 * 2 * 2 * 8 * 4 * 2  # tokens, K and V, heads, dim, bytes, layers


@pytest.fixture
def size(tiny_path, monkeypatch):
    def size(
        free=10**9, max_model_len="auto", max_num_seqs=4, weights_to_come=0, device=CPU, **cache
    ):
        monkeypatch.setattr(kv_memory, "free_memory_bytes", lambda device: free)
        config = RuntimeConfig(
            model={"path": tiny_path, "format": "dummy", "max_model_len": max_model_len},
            scheduler={"max_num_seqs": max_num_seqs},
            cache=cache,
        )
        spec = read_spec(config.model)
        return size_kv_pool(config, spec, 4, device, weights_to_come=weights_to_come)

    return size


@pytest.mark.case("LD19")
def test_memory_pays_for_the_reserved_blocks_too(size):
    assert size(memory=10 * BLOCK_BYTES) == 8
    assert size(memory=10 * BLOCK_BYTES + BLOCK_BYTES - 1) == 8
    assert size(memory=3 * BLOCK_BYTES) == 1
    assert size(memory="1MiB") == (1 << 20) // BLOCK_BYTES - 2


def test_num_blocks_is_taken_as_it_is(size):
    assert size(num_blocks=7) == 7
    assert size(num_blocks=7, memory="auto") == 7


def test_auto_takes_a_share_and_no_more_than_all_rows_can_use(size):
    assert size(free=2 * 22 * BLOCK_BYTES) == 20
    assert size(free=10**12) == 4 * 16  # 64 positions: 63 slots in 16 blocks
    assert size(free=10**12, max_model_len=10) == 4 * 3


def test_auto_leaves_most_of_a_large_machine_alone(size, monkeypatch):
    monkeypatch.setattr(kv_memory, "CPU_MOST_BYTES", 12 * BLOCK_BYTES)
    assert size(free=10**12) == 10
    assert size(free=10**12, max_num_seqs=1, max_model_len=10) == 3
    assert size(free=10**12, max_model_len=64) == 16  # one such request needs more, and gets it
    assert size(free=2 * 8 * BLOCK_BYTES, max_model_len=64) == 6
    assert size(free=10**12, memory=30 * BLOCK_BYTES) == 28


@pytest.mark.case("LD17")
@pytest.mark.parametrize(
    ("cache", "free"),
    [
        ({"memory": 3 * BLOCK_BYTES - 1}, 10**9),
        ({"memory": 1}, 10**9),
        ({}, 0),
        ({}, 5 * BLOCK_BYTES),
    ],
)
def test_less_than_a_block_is_an_error_that_names_the_need(size, cache, free):
    with pytest.raises(ConfigError, match=rf"cache\.memory: .*at least {3 * BLOCK_BYTES} bytes"):
        size(free=free, **cache)


@pytest.mark.parametrize("device", [CPU, torch.device("cuda", 0)], ids=str)
def test_weights_that_are_not_loaded_yet_are_taken_off(size, device):
    loaded = size(free=50 * BLOCK_BYTES, device=device)
    assert size(free=57 * BLOCK_BYTES, weights_to_come=7 * BLOCK_BYTES, device=device) == loaded
    given = {"weights_to_come": 7 * BLOCK_BYTES, "device": device}
    assert size(free=27 * BLOCK_BYTES, num_blocks=18, **given) == 18
    message = r"20\.0 KiB are free here beside weights of 7\.0 KiB"
    for cache in ({"num_blocks": 19}, {"memory": 21 * BLOCK_BYTES}):
        with pytest.raises(ConfigError, match=message):
            size(free=27 * BLOCK_BYTES, **given, **cache)
    with pytest.raises(
        ConfigError, match=r"cache\.memory: a share of the 0 B that are free beside"
    ):
        size(free=6 * BLOCK_BYTES, **given)


def test_a_gpu_where_nothing_was_measured_gives_the_most_that_there_can_be(size):
    cuda = torch.device("cuda", 0)
    assert size(free=100 * BLOCK_BYTES, max_num_seqs=100, device=cuda) == 95 - 2


@pytest.mark.parametrize("cache", [{"memory": 1000 * BLOCK_BYTES}, {"num_blocks": 1000}])
def test_more_than_is_free_is_an_error(size, cache):
    key = next(iter(cache))
    with pytest.raises(ConfigError, match=rf"cache\.{key}: the KV pool would take .* are free"):
        size(free=500 * BLOCK_BYTES, **cache)


def test_free_memory_here_is_positive():
    assert kv_memory.free_memory_bytes(CPU) > 0


def test_free_memory_is_what_the_tightest_limit_leaves(monkeypatch):
    monkeypatch.setattr(kv_memory, "memory_headrooms", lambda: [500, 150])
    assert kv_memory.free_memory_bytes(CPU) == 150
