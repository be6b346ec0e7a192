"""Kernels run on torch's own OpenMP pool, alone and in lists."""

import ctypes
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from attention_backends import (
    NativeKernel,
    NativeSource,
    StepList,
    able_isas,
    compiler_problem,
    launch,
    load_library,
)
from attention_backends._native.launch import loaded_openmp

pytestmark = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())

KERNELS = r"""
#include "stepgraph_kernel.h"

struct Args { float* x; int64_t count; float factor; int32_t* seen; };

extern "C" STEPGRAPH_EXPORT void scale(const void* untyped, Team* team) {
  const Args* args = static_cast<const Args*>(untyped);
  int64_t begin, end;
  team_range(team, args->count, 16, &begin, &end);
  for (int64_t i = begin; i < end; i++) args->x[i] = args->x[i] * args->factor + 1;
  args->seen[team->thread]++;
}

// Each item once, whoever takes it; then, after all of them, their sum.
extern "C" STEPGRAPH_EXPORT void take(const void* untyped, Team* team) {
  const Args* args = static_cast<const Args*>(untyped);
  for (int64_t i; (i = team_next(team)) < args->count;) args->x[i] += 1;
  team_barrier(team);
  if (team->thread == 0) {
    float sum = 0;
    for (int64_t i = 0; i < args->count; i++) sum += args->x[i];
    args->x[args->count] = sum;
  }
}

extern "C" STEPGRAPH_EXPORT
void part(int thread, int threads, int64_t count, int64_t grain, int64_t* range) {
  Team team = {thread, threads, nullptr, nullptr, nullptr};
  team_range(&team, count, grain, range, range + 1);
}
"""


class Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("factor", ctypes.c_float),
        ("seen", ctypes.c_void_p),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    file: Path = tmp_path_factory.mktemp("kernels") / "test_kernels.cpp"
    file.write_text(KERNELS)
    return load_library(NativeSource("test_kernels", (file,)))


@pytest.fixture
def data():
    x, seen = torch.zeros(1001), torch.zeros(8, dtype=torch.int32)
    return x, seen, Args(x.data_ptr(), 1000, 2.0, seen.data_ptr())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_threads_of_a_team_call_the_kernel(library, data, threads):
    x, seen, args = data
    launch(library.kernel("scale"), args, (x, seen), threads)
    assert (x[:1000] == 1).all()
    assert seen.tolist() == [1] * threads + [0] * (8 - threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_items_are_taken_once_each_before_the_barrier(library, data, threads):
    x, seen, args = data
    for turn in range(1, 6):
        launch(library.kernel("take"), args, (x, seen), threads)
        assert (x[:1000] == turn).all()
        assert x[1000] == 1000 * turn


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_of_a_list_run_in_order_and_each_starts_its_own_count(library, data, threads):
    x, _, args = data
    scale, take = library.kernel("scale"), library.kernel("take")
    steps = StepList([(scale, args), (take, args), (take, args), (scale, args)])
    assert len(steps) == 4
    steps.run(threads)
    assert (x[:1000] == 7).all(), "(((0 * 2 + 1) + 1) + 1) * 2 + 1"
    assert x[1000] == 3000


@pytest.mark.parametrize("threads", [1, 2, 7, 64])
@pytest.mark.parametrize(("count", "grain"), [(0, 16), (1, 16), (100, 16), (1000, 1), (64, 64)])
def test_ranges_cover_every_item_once(library, threads, count, grain):
    function = library.handle.part
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    taken = []
    for thread in range(threads):
        bounds = (ctypes.c_int64 * 2)()
        function(thread, threads, count, grain, bounds)
        assert bounds[0] <= bounds[1]
        assert bounds[0] % grain == 0 or bounds[0] == count
        taken += range(*bounds)
    assert taken == list(range(count))


def test_there_is_one_openmp_runtime_in_the_process(library, data):
    x, seen, args = data
    launch(library.kernel("scale"), args, (x, seen), 2)
    torch.ones(300, 300) @ torch.ones(300, 300)
    assert len(loaded_openmp()) == 1


class Recorder(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is launch:
            self.calls.append(args)
            return None
        return func(*args, **(kwargs or {}))


def test_a_recorder_sees_launches_and_can_replay_them(library, data):
    x, seen, args = data
    kernel = library.kernel("scale")
    with Recorder() as recorder:
        launch(kernel, args, (x, seen))
        launch(kernel, args, (x, seen))
    assert not x.any()
    StepList([(kernel, args) for kernel, args, _ in recorder.calls]).run(1)
    assert (x[:1000] == 3).all()


def test_an_unknown_kernel_is_an_error(library):
    assert isinstance(library.kernel("scale"), NativeKernel)
    with pytest.raises(AttributeError, match="no_such_kernel"):
        library.kernel("no_such_kernel")


def test_a_library_is_compiled_for_the_best_set_unless_told(library):
    assert library.isa in able_isas()
    assert able_isas(frozenset()) == ["portable"]
    assert able_isas(frozenset({"avx2", "fma", "f16c"})) == ["portable", "avx2"]
    assert able_isas(frozenset({"avx512f", "avx512_bf16"})) == ["portable"]
