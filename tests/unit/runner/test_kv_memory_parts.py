"""Memory on a GPU: what is measured, and what is left for the pool."""

import logging

import pytest
import torch

from runtime.config import RuntimeConfig
from runtime.errors import ConfigError
from runtime.models import read_spec, weight_bytes
from runtime.runner import kv_memory, measure_footprint
from runtime.runner.footprint import Footprint
from runtime.runner.kv_memory import size_kv_pool
from runtime.runner.out_of_memory import LOWER
from tests.unit.runner.helpers import CPU

CUDA = torch.device("cuda", 0)
BLOCK_BYTES = 4 * 2 * 2 * 8 * 4 * 2  # tokens, K and V, heads, dim, bytes, layers
PARTS = {"buffers": 10, "activations": 2000, "workspaces": 300, "graphs": 4000}


def footprint(free, **changes):
    return Footprint(free=free, weights=12345, **{**PARTS, **changes})


@pytest.fixture
def size(tiny_path, monkeypatch):
    def unread(device):
        raise AssertionError("what was measured is what counts")

    monkeypatch.setattr(kv_memory, "free_memory_bytes", unread)

    def size(parts, max_num_seqs=400, **cache):
        config = RuntimeConfig(
            model={"path": tiny_path, "format": "dummy"},
            scheduler={"max_num_seqs": max_num_seqs},
            cache=cache,
        )
        return size_kv_pool(config, read_spec(config.model), 4, CUDA, parts)

    return size


@pytest.mark.parametrize("free", [20_000, 200_000, 2_000_000])
def test_the_pool_gets_what_the_parts_leave_of_the_share(size, free):
    num_blocks = size(footprint(free))
    beside = sum(PARTS.values())
    assert (num_blocks + 2) * BLOCK_BYTES + beside <= 0.95 * free
    assert (num_blocks + 3) * BLOCK_BYTES + beside > 0.95 * free


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_taken_off(size, part):
    less = size(footprint(10**6, **{part: PARTS[part] + 10 * BLOCK_BYTES}))
    assert less == size(footprint(10**6)) - 10


def test_no_more_than_all_rows_can_use(size):
    assert size(footprint(10**12), max_num_seqs=4) == 4 * 16


def test_memory_overrides_where_it_fits_beside_the_parts(size):
    beside = sum(PARTS.values())
    memory = 10 * BLOCK_BYTES
    assert size(footprint(memory + beside), memory=memory) == 8
    assert size(footprint(memory + beside), num_blocks=8) == 8
    for cache in ({"memory": memory}, {"num_blocks": 8}):
        key = next(iter(cache))
        with pytest.raises(ConfigError, match=rf"cache\.{key}: .*graphs take 3\.9 KiB") as raised:
            size(footprint(memory + beside - 1), **cache)
        for part, cure in LOWER.items():
            assert f"{part} take" in str(raised.value)
            assert cure in str(raised.value)


def test_no_room_for_a_block_says_what_to_lower(size):
    with pytest.raises(ConfigError, match=r"cache\.memory: .*activations take 2\.0 KiB") as raised:
        size(footprint(7000))
    assert "scheduler.max_num_batched_tokens" in str(raised.value)


def test_one_line_names_each_part(size, caplog):
    caplog.set_level(logging.INFO, "runtime.runner.kv_memory")
    num_blocks = size(footprint(10**6))
    (record,) = caplog.records
    line = record.getMessage()
    for part in ("weights 12.1 KiB", "activations 2.0 KiB", "graphs 3.9 KiB", "workspaces 300 B"):
        assert part in line
    assert f"{num_blocks} blocks of 4 tokens" in line
    assert "spare" in line


class Meter:
    """Answers in turn, and notes the order of the questions."""

    def __init__(self, taken, peak, free):
        self.answers = {"taken": list(taken), "peak": [peak], "free": [free]}
        self.asked = []

    def taken(self):
        return self._answer("taken")

    def peak(self):
        return self._answer("peak")

    def free(self):
        return self._answer("free")

    def reset_peak(self):
        self.asked.append("reset")

    def _answer(self, what):
        self.asked.append(what)
        return self.answers[what].pop(0)


@pytest.fixture
def measure(tiny, tiny_path):
    from runtime.runner import choose_backend

    def measure(meter, *, loaded=tiny, graphs=None, wrap=lambda backend: backend, **scheduler):
        config = RuntimeConfig(
            model={"path": tiny_path, "format": "dummy"},
            scheduler={"max_num_seqs": 6, "max_num_batched_tokens": 64, **scheduler},
            graphs=graphs or {"decode": "emulated", "mixed": "emulated"},
        )
        backend = choose_backend("torch_paged", tiny.attention_shapes, 4, CPU).backend
        return measure_footprint(
            config, loaded, wrap(backend), device=CPU, block_size=4, meter=meter
        )

    return measure


def test_parts_are_differences_of_what_was_read(measure, tiny):
    meter = Meter(taken=[1000, 1000 + 3 * BLOCK_BYTES + 70], peak=9000, free=5)
    parts = measure(meter)
    assert meter.asked == ["taken", "taken", "reset", "peak", "free"]
    assert parts.buffers == 70
    assert parts.activations == 9000 - (1000 + 3 * BLOCK_BYTES + 70)
    assert (parts.free, parts.weights) == (5, weight_bytes(tiny.spec))
    assert parts.graphs > 0
    assert parts.beside_pool == 70 + parts.activations + parts.workspaces + parts.graphs


def test_without_graphs_they_take_nothing(measure):
    parts = measure(Meter([0, 0], 0, 1), graphs={"decode": "eager", "mixed": "eager"})
    assert (parts.graphs, parts.workspaces) == (0, 0)


@pytest.mark.parametrize("decode", ["emulated", "eager"])
def test_workspaces_are_what_the_backend_reserves_for_graphs(measure, decode):
    told = []

    def wrap(backend):
        class Reserving(backend):
            def reserve(self, buckets, max_model_len):
                told.extend((bucket.kind, bucket.num_reqs) for bucket in buckets)
                return 777 + 0 * super().reserve(buckets, max_model_len)

        return Reserving

    parts = measure(Meter([0, 0], 0, 1), wrap=wrap, graphs={"decode": decode, "mixed": "eager"})
    captured = decode == "emulated"
    assert parts.workspaces == (777 if captured else 0)
    assert told == ([("decode", n) for n in (6, 4, 2, 1)] if captured else [])


def test_the_largest_step_runs_every_token_and_draws_for_every_row(measure, tiny, monkeypatch):
    from dataclasses import replace

    from runtime.sampling import Sampler

    steps, draws = [], []

    class Model:
        def forward(self, input_ids, positions, attend):
            steps.append(len(input_ids))
            return tiny.model.forward(input_ids, positions, attend)

        def compute_logits(self, hidden):
            return tiny.model.compute_logits(hidden)

    sample = Sampler.sample
    monkeypatch.setattr(
        Sampler,
        "sample",
        lambda self, logits, rows, n: draws.append(rows.tolist()) or sample(self, logits, rows, n),
    )
    measure(
        Meter([0, 0], 0, 1),
        loaded=replace(tiny, model=Model()),
        graphs={"decode": "eager", "mixed": "eager"},
    )
    assert steps == [64]
    assert draws == [[0, 1, 2, 3, 4, 5]]


def test_the_cuda_meter_reads_with_caches_given_back(monkeypatch):
    from runtime.runner.footprint import CudaMeter

    asked = []
    answers = {
        "mem_get_info": (70, 100),
        "memory_reserved": 20,
        "max_memory_reserved": 25,
        "reset_peak_memory_stats": None,
        "synchronize": None,
        "empty_cache": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(
            torch.cuda, name, lambda *a, name=name, answer=answer: asked.append(name) or answer
        )
    meter = CudaMeter(CUDA)
    given_back = ["synchronize", "empty_cache"]
    for read, answer, order in (
        (meter.free, 70, [*given_back, "mem_get_info"]),
        (meter.taken, 20, [*given_back, "memory_reserved"]),
        (meter.reset_peak, None, [*given_back, "reset_peak_memory_stats"]),
        (meter.peak, 25, ["synchronize", "max_memory_reserved"]),
    ):
        asked.clear()
        assert read() == answer
        assert asked == order
