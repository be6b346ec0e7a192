"""Every graph mode gives the tokens of eager steps; and a runner that is broken does not.

`emulated` and `emulated_ragged` obey each rule of a capture on a device, on the CPU: Python runs
once, ints and addresses are those of the capture, memory that dies is used again.
"""

import functools
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attention_backends import examine_all
from runtime import Runtime, RuntimeConfig
from runtime.errors import BackendError
from runtime.runner import forward, input_batch, model_runner
from runtime.runner.buffers import InputBuffers
from tests.builders import make_hf_folder
from tests.conftest import SMOLLM2
from tests.equivalence.prompts import PROMPTS as TEXTS
from tests.equivalence.test_tiny import GREEDY, PROMPTS
from tests.unit.attention_backends.reference import CPU, make_shape

ROOT = Path(__file__).parents[2]
MODES = [
    ("torch_paged", "emulated", "emulated"),
    ("torch_paged", "emulated", "padded_eager"),
    ("torch_paged", "padded_eager", "emulated"),
    ("cpu_native", "emulated", "emulated"),
    ("cpu_native", "emulated", "emulated_ragged"),
    ("cpu_native", "emulated_ragged", "emulated_ragged"),
]
PLACES = {
    "chunks": {"scheduler.max_num_batched_tokens": 24},
    "preemption": {"scheduler.max_num_batched_tokens": 24, "cache.num_blocks": 28},
    "run ahead": {"scheduler.max_num_batched_tokens": 24, "engine.overlap": True},
    "canary": {"scheduler.max_num_batched_tokens": 24, "engine.padding_canary": True},
    "lazy": {"scheduler.max_num_batched_tokens": 24, "graphs.lazy_after": 3},
    "checks": {
        "scheduler.max_num_batched_tokens": 24,
        "graphs.check_addresses": True,
        "graphs.compare_every": 1,
    },
}
LARGEST_DECODE, LARGEST_MIXED = 9, 24
SIZES = [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(make_hf_folder(tmp_path_factory.mktemp("tiny")))


def make_runtime(path, backend, decode="eager", mixed="eager", changes=None):
    if not examine_all([make_shape()], 4, CPU)[backend].ok:
        pytest.skip(f"{backend} is not able here")
    sections = {
        "model": {"path": path, "max_model_len": 100},
        "scheduler": {
            "max_num_batched_tokens": LARGEST_MIXED,
            "max_num_seqs": LARGEST_DECODE,
        },
        "cache": {"num_blocks": 400, "block_size": 4},
        "attention": {"backend": backend},
        "graphs": {"decode": decode, "mixed": mixed, "sizes": SIZES},
        "engine": {"check_integrity": True, "overlap": False},
    }
    for key, value in (changes or {}).items():
        section, name = key.split(".")
        sections[section][name] = value
    return Runtime(RuntimeConfig(**sections))


def run(runtime, prompts=PROMPTS):
    """Tokens, or why there are none."""
    return [r.outputs[0].error or r.token_ids for r in runtime.generate(prompts, GREEDY)]


@functools.cache
def eager_tokens(path, backend):
    with make_runtime(path, backend) as runtime:
        return run(runtime)


def captured_kinds_of(mode):
    """Of its decode steps, and of its mixed ones."""
    return {
        "emulated": ("decode", "segmented"),
        "emulated_ragged": ("ragged", "ragged"),
    }.get(mode)


def captured_kinds(modes):
    of_cases = enumerate(map(captured_kinds_of, modes[1:]))
    return {kinds[case] for case, kinds in of_cases if kinds}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("modes", MODES, ids="-".join)
def test_each_mode_in_each_place(tiny, modes, place):
    with make_runtime(tiny, *modes, PLACES[place]) as runtime:
        assert run(runtime) == eager_tokens(tiny, modes[0])
        assert run(runtime) == eager_tokens(tiny, modes[0]), "cached prefixes"
        stats = runtime.stats()
    assert stats.cached_tokens > 100
    assert stats.mixed_steps > 0
    assert (stats.preemptions > 0) == (place == "preemption")
    assert (stats.steps_ahead > 0) == (place == "run ahead")
    graphs = stats.graphs
    assert (graphs.decode_mode, graphs.mixed_mode) == modes[1:]
    assert sum(graphs.bucket_steps.values()) > 0.9 * stats.steps
    assert ("not captured yet" in graphs.eager_reasons) == (place == "lazy")
    assert {bucket["kind"] for bucket in graphs.captured["buckets"]} == captured_kinds(modes)
    assert (
        graphs.captured["kv_blocks"] >= max(b["kv_blocks"] for b in graphs.captured["buckets"]) > 0
    )


@pytest.mark.parametrize("modes", MODES, ids="-".join)
def test_every_size_from_1_to_the_largest_bucket(tiny, modes):
    def sweep(runtime):
        found = []
        for n in range(1, LARGEST_MIXED + 1):  # steps of n tokens
            found.append(runtime.generate([[5 + n] * n], {**GREEDY, "max_tokens": 2})[0].token_ids)
        for n in range(1, LARGEST_DECODE + 1):  # steps of n requests
            prompts = [[3 + n, i + 1] for i in range(n)]
            results = runtime.generate(prompts, {**GREEDY, "max_tokens": 3})
            found += [r.token_ids for r in results]
        return found

    with make_runtime(tiny, modes[0]) as runtime:
        expected = sweep(runtime)
    with make_runtime(tiny, *modes) as runtime:
        assert sweep(runtime) == expected
        graphs = runtime.stats().graphs
    assert graphs.eager_reasons == {}
    mixed = "ragged" if modes[2] == "emulated_ragged" else "segmented"
    wanted = {f"{mixed}({n} " for n in (2, 4, 8, 16, LARGEST_MIXED)}
    if modes[1] != "emulated_ragged":
        wanted |= {f"decode({n} " for n in (1, 2, 4, 8, LARGEST_DECODE)}
    assert {name[: name.index(" ") + 1] for name in graphs.bucket_steps} >= wanted


# -- faults ---------------------------------------------------------------------------------------


def write_padding_to_a_real_block(monkeypatch):
    pad = input_batch._pad

    def wrong(host, kind, num_tokens, num_reqs, size, block_size):
        longest = pad(host, kind, num_tokens, num_reqs, size, block_size)
        host.slot_mapping[num_tokens : size.num_tokens] = host.slot_mapping[0]
        return longest

    monkeypatch.setattr(input_batch, "_pad", wrong)


def leave_the_padding_as_it_was(monkeypatch):
    """It keeps what an earlier, larger step had there."""
    monkeypatch.setattr(input_batch, "_pad", lambda *args: 1)


def freeze_the_plan(monkeypatch):
    """The part between segments keeps the plan of the capture."""

    class Frozen(forward.Forward):
        @property
        def plan(self):
            return self._first

        @plan.setter
        def plan(self, plan):
            self._first = getattr(self, "_first", plan)

    monkeypatch.setattr(model_runner, "Forward", Frozen)


def never_refresh(monkeypatch):
    """Graphs with attention inside keep the lengths of the capture."""
    setup = model_runner.ModelRunner._capture_graphs

    def wrong(runner):
        setup(runner)
        runner.backend.refresh = lambda plan, batch: None

    monkeypatch.setattr(model_runner.ModelRunner, "_capture_graphs", wrong)


def bake_the_number_of_tokens(monkeypatch):
    """A Python int of the step that is read inside the captured forward."""
    build = input_batch.InputBatch.build.__func__

    def noting(cls, so, *args):
        batch = build(cls, so, *args)
        forward.Forward.num_real = batch.num_tokens
        return batch

    def wrong(self, cut):
        hidden = call(self, cut)
        hidden[max(1, self.num_real) :].zero_()  # a capture has a dummy batch of none
        return hidden

    call = forward.Forward.__call__
    monkeypatch.setattr(forward.Forward, "num_real", 0, raising=False)
    monkeypatch.setattr(input_batch.InputBatch, "build", classmethod(noting))
    monkeypatch.setattr(forward.Forward, "__call__", wrong)


def move_the_inputs(monkeypatch):
    """The step is written to a buffer that no graph reads."""
    setup = model_runner.ModelRunner._capture_graphs

    def wrong(runner):
        setup(runner)
        old = runner._buffers
        tokens, (reqs, blocks) = len(old.host.input_ids), old.host.block_table.shape
        runner._buffers = InputBuffers(tokens, reqs, blocks, torch.device("cpu"))
        runner.kept = old

    monkeypatch.setattr(model_runner.ModelRunner, "_capture_graphs", wrong)


def forget_to_feed(monkeypatch):
    monkeypatch.setattr(InputBuffers, "feed", lambda self, sampled, num_fed: None)


FAULTS = [
    (write_padding_to_a_real_block, ("padded_eager", "padded_eager"), {}),
    (write_padding_to_a_real_block, ("emulated", "emulated"), {}),
    (leave_the_padding_as_it_was, ("padded_eager", "padded_eager"), {}),
    (freeze_the_plan, ("eager", "emulated"), {}),
    (never_refresh, ("emulated", "eager"), {}),
    (bake_the_number_of_tokens, ("emulated", "emulated"), {}),
    (move_the_inputs, ("emulated", "emulated"), {}),
    (forget_to_feed, ("emulated", "emulated"), {"engine.overlap": True}),
]


@pytest.mark.parametrize(("fault", "modes", "changes"), FAULTS)
def test_a_broken_runner_is_found(tiny, monkeypatch, fault, modes, changes):
    logging.disable(logging.ERROR)  # of steps that fail
    fault(monkeypatch)
    try:
        with make_runtime(tiny, "torch_paged", *modes, changes) as runtime:
            assert run(runtime) != eager_tokens(tiny, "torch_paged")
    finally:
        logging.disable(logging.NOTSET)


def test_without_a_fault_nothing_is_found(tiny):
    """So that what the test above finds is the fault."""
    for _, modes, changes in FAULTS:
        with make_runtime(tiny, "torch_paged", *modes, changes) as runtime:
            assert run(runtime) == eager_tokens(tiny, "torch_paged")


def test_a_baked_int_is_invisible_without_capture(tiny, monkeypatch):
    bake_the_number_of_tokens(monkeypatch)
    with make_runtime(tiny, "torch_paged", "padded_eager", "padded_eager") as runtime:
        assert run(runtime) == eager_tokens(tiny, "torch_paged")


def test_a_moved_buffer_is_named(tiny, monkeypatch):
    move_the_inputs(monkeypatch)
    changes = {"graphs.check_addresses": True}
    with make_runtime(tiny, "torch_paged", "emulated", "emulated", changes) as runtime:
        [error] = run(runtime, PROMPTS[3:4])
    assert "the step's positions has moved since segmented(24 tokens) was captured" in error


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_replay_is_found_by_comparison(tiny, monkeypatch, dtype):
    bake_the_number_of_tokens(monkeypatch)
    changes = {"graphs.compare_every": 1, "model.dtype": dtype}
    with make_runtime(tiny, "torch_paged", "emulated", "emulated", changes) as runtime:
        [error] = run(runtime, PROMPTS[3:4])
    assert "a replay of segmented(24 tokens) differs from the eager forward in" in error


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("graphs.mixed", "full", "graphs.mixed: full cannot be used: it serves only steps with"),
        ("graphs.decode", "full", "it captures CUDA graphs, and the device is cpu"),
        (
            "graphs.mixed",
            "emulated_ragged",
            "the attention backend must support RAGGED, and it supports ONE_TOKEN",
        ),
    ],
)
def test_a_mode_that_cannot_serve_is_refused(tiny, key, value, message):
    with pytest.raises(BackendError) as caught:
        make_runtime(tiny, "torch_paged", "eager", "eager", {key: value})
    assert message in str(caught.value)


# -- the real model, and Triton -------------------------------------------------------------------


REAL_LARGEST = 24
REAL = {
    "model.dtype": "float32",
    "model.max_model_len": 120,
    "scheduler.max_num_batched_tokens": REAL_LARGEST,
    "scheduler.max_num_seqs": REAL_LARGEST,
    "cache.num_blocks": 52,
    "engine.overlap": True,
}


@functools.cache
def run_the_real_model(mode):
    """(tokens, stats, key of each step by what was dispatched) of a load with mixed batches,
    preemption and cache hits, of a step of each number of tokens, and of one of each number of
    requests."""
    steps = {}
    with make_runtime(SMOLLM2, "cpu_native", mode, mode, REAL) as runtime:
        graphs = runtime.engine.runner.graphs
        dispatch = graphs.dispatch

        def noting(num_tokens, num_reqs, max_query_len, max_seq_len):
            key = dispatch(num_tokens, num_reqs, max_query_len, max_seq_len)
            steps["mixed" if max_query_len > 1 else "decode", num_tokens] = key.kind.value
            return key

        graphs.dispatch = noting
        prompts = [*TEXTS[:7], TEXTS[0]]
        results = runtime.generate(prompts, {**GREEDY, "max_tokens": 12})
        for n in range(2, REAL_LARGEST + 1):
            results += runtime.generate([[5 + n] * n], {**GREEDY, "max_tokens": 2})
        # one request fewer in each step
        lengths = range(1, REAL_LARGEST + 1)
        params = [{**GREEDY, "max_tokens": length} for length in lengths]
        results += runtime.generate([[100 + length] for length in lengths], params)
        return [r.token_ids for r in results], runtime.stats(), steps


@pytest.fixture(scope="module")
def real_eager():
    return run_the_real_model("eager")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["emulated", "emulated_ragged"])
def test_the_real_model(mode, real_eager):
    expected, _, exact = real_eager
    tokens, stats, steps = run_the_real_model(mode)
    assert tokens == expected
    assert stats.preemptions > 0
    assert stats.cached_tokens > 100
    assert stats.mixed_steps > 0
    decode, mixed = captured_kinds_of(mode)
    wanted = {("mixed", n): mixed for n in range(2, REAL_LARGEST + 1)}
    wanted |= {("decode", n): decode for n in range(1, REAL_LARGEST + 1)}
    assert steps == wanted
    assert set(exact) == set(wanted)
    assert set(exact.values()) == {"eager"}


def triton_cases(path):
    """What the test below runs where Triton is interpreted."""
    prompts, params = [[7] * 5, [9, 8], [5] * 11], {**GREEDY, "max_tokens": 3}
    changes = {"scheduler.max_num_seqs": 2, "scheduler.max_num_batched_tokens": 8}
    changes["graphs.sizes"] = [2, 8]
    with make_runtime(path, "torch_paged", changes=changes) as runtime:
        expected = [r.token_ids for r in runtime.generate(prompts, params)]
    modes = [
        ("eager", "eager", set()),
        ("emulated", "emulated", {"decode", "segmented"}),
        ("emulated", "emulated_ragged", {"decode", "ragged"}),
    ]
    for decode, mixed, kinds in modes:
        with make_runtime(path, "triton_paged", decode, mixed, changes) as runtime:
            assert [r.token_ids for r in runtime.generate(prompts, params)] == expected
            buckets = runtime.stats().graphs.bucket_steps
            assert {name[: name.index("(")] for name in buckets} == kinds
    changes["attention.decode_backend"] = "torch_paged"
    with make_runtime(path, "triton_paged", "emulated", "eager", changes) as runtime:
        assert runtime.engine.runner.backend.name == "triton_paged+torch_paged"
        assert [r.token_ids for r in runtime.generate(prompts[:2], params)] == expected[:2]


def test_triton_kernels_in_captured_steps(tiny):
    pytest.importorskip("triton")
    code = "import sys; from tests.equivalence.test_graphs import *; triton_cases(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, tiny],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
