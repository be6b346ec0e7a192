"""runtime/machine/threads.py: counts, cores, and workers that keep to them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attention_backends import NativeBuildError, compiler_problem
from runtime.config import EngineConfig, format_cores
from runtime.errors import ConfigError
from runtime.machine import threads
from runtime.machine.threads import (
    StepThreads,
    num_usable_cpus,
    spread_cores,
    threads_of,
    workers_of_pool,
)
from tests.builders import write_files

needs_pool = pytest.mark.skipif(
    bool(compiler_problem()) or not hasattr(os, "sched_setaffinity"),
    reason=compiler_problem() or "no affinity here",
)


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on the cores 0 to 7."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("quotas", "expected"), [([], 8), ([3.5], 3), ([0.5], 1), ([16.0], 8), ([6.0, 4.0], 4)]
)
def test_quotas_cap_the_cores_of_the_mask(
    monkeypatch: pytest.MonkeyPatch, quotas: list[float], expected: int
) -> None:
    monkeypatch.setattr(threads, "cpu_quotas", lambda root: quotas)
    assert num_usable_cpus() == expected


@pytest.mark.usefixtures("eight")
def test_omp_num_threads_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_files(tmp_path, {"sys/fs/cgroup/cpu.max": "200000 100000\n"})
    monkeypatch.setenv("OMP_NUM_THREADS", "12,2")
    assert num_usable_cpus(root) == 12


def test_one_hardware_thread_of_each_core_comes_first(tmp_path: Path) -> None:
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    files = {
        f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list": f"{text}\n"
        for core, text in siblings.items()
    }
    assert spread_cores({0, 1, 2, 3}, write_files(tmp_path, files)) == [0, 1, 2, 3]
    assert spread_cores({0, 2, 3}, write_files(tmp_path, files)) == [0, 3, 2]
    assert spread_cores({5, 4}, tmp_path / "none") == [4, 5]


@pytest.mark.parametrize("value", ["3-1", "a", "", "0,,1", "0-", "-1", "0,0", "0-70000"])
def test_what_is_no_list_of_cores_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.bind_cores: must "):
        EngineConfig(bind_cores=value)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"bind_cores": "6-9"}, r"may not run on 8-9; allowed here: 0-7"),
        ({"bind_cores": "0,2", "threads": 3}, r"0,2 are 2 cores for the 3 threads of"),
        ({"bind_cores": True, "threads": 9}, r"0-7 are 8 cores for the 9 threads of"),
    ],
)
@pytest.mark.usefixtures("eight")
def test_cores_that_cannot_be_had_are_refused(engine: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.bind_cores: .*" + message):
        threads_of(EngineConfig(**engine))


@pytest.mark.usefixtures("eight")
def test_a_count_of_the_environment_is_blamed_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "12")
    message = r"0-7 are 8 cores for the 12 threads of OMP_NUM_THREADS; each needs one"
    with pytest.raises(ConfigError, match=message):
        threads_of(EngineConfig(bind_cores=True))
    with pytest.raises(ConfigError, match=r"for the 12 threads of engine\.threads;"):
        threads_of(EngineConfig(bind_cores=True, threads=12))


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, (8, ())),
        ({"threads": 3}, (3, ())),
        ({"bind_cores": True, "threads": 2}, (2, (0, 4))),
        ({"bind_cores": "5,2-3"}, (3, (5, 2, 3))),
        ({"bind_cores": 4}, (1, (4,))),
        ({"bind_cores": "2-7", "threads": 2}, (2, (2, 3))),
    ],
)
@pytest.mark.usefixtures("eight")
def test_what_the_keys_come_to(
    engine: dict, expected: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "workers_of_pool", lambda count: [])
    monkeypatch.setattr(threads, "num_usable_cpus", lambda: 8)
    monkeypatch.setattr(threads, "spread_cores", lambda allowed: [0, 4, 1, 5, 2, 6, 3, 7])
    found = threads_of(EngineConfig(**engine))
    assert (found.count, found.cores) == expected


def test_more_threads_than_cpus_are_warned_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "num_usable_cpus", lambda: 8)
    assert threads_of(EngineConfig(threads=8)).count == 8
    assert not caplog.records
    assert threads_of(EngineConfig(threads=9)).count == 9
    assert "engine.threads: 9 threads on 8 usable CPUs" in caplog.text


def test_where_nothing_can_be_compiled_the_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(count: int) -> list[int]:
        raise NativeBuildError("no C++ compiler")

    monkeypatch.setattr(threads, "workers_of_pool", fail)
    with pytest.raises(ConfigError, match=r"engine\.bind_cores: .* no C\+\+ compiler"):
        StepThreads(2, (0, 1))


@needs_pool
def test_workers_are_other_threads_of_this_process_and_stay() -> None:
    found = workers_of_pool(3)
    assert len(set(found)) == 2
    assert threading.get_native_id() not in found
    assert {str(number) for number in found} <= set(os.listdir("/proc/self/task"))
    assert workers_of_pool(3) == found


@needs_pool
def test_a_step_is_bound_and_nothing_is_left_of_it() -> None:
    mine = os.sched_getaffinity(0)
    core, other = min(mine), max(mine)
    context = StepThreads(2, (core, other))
    with context:
        (worker,) = workers_of_pool(2)
        assert os.sched_getaffinity(worker) == {other}
        assert os.sched_getaffinity(0) == {core, other}
    assert os.sched_getaffinity(0) == mine
    assert os.sched_getaffinity(worker) == {other}
    context.close()
    assert os.sched_getaffinity(worker) == mine
    context.close()


@needs_pool
def test_a_step_that_fails_gives_the_caller_its_cores_back() -> None:
    mine, seen = os.sched_getaffinity(0), []

    def step() -> None:
        with StepThreads(1, (max(mine),)):
            seen.append(os.sched_getaffinity(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert seen == [{max(mine)}]
    assert os.sched_getaffinity(0) == mine


@needs_pool
def test_engines_in_turns_each_have_their_count_and_cores() -> None:
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("one core")
    a, b, *_ = sorted(mine)
    contexts = [StepThreads(2, (a, b)), StepThreads(3, (b, a, b)), StepThreads(1)]
    for _ in range(2):
        for context in contexts:
            with context:
                assert torch.get_num_threads() == context.count
                for worker, core in zip(
                    workers_of_pool(context.count), context.cores[1:], strict=True
                ):
                    assert os.sched_getaffinity(worker) == {core}
    for context in contexts:
        context.close()
    assert all(os.sched_getaffinity(worker) == mine for worker in workers_of_pool(3))


@needs_pool
def test_another_calling_thread_has_a_pool_of_its_own_that_is_bound_too() -> None:
    mine = os.sched_getaffinity(0)
    context = StepThreads(2, (min(mine), max(mine)))
    found = []

    def step() -> None:
        with context:
            found.append([os.sched_getaffinity(w) for w in workers_of_pool(2)])

    with context:
        first = workers_of_pool(2)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert found == [[{max(mine)}]]
    context.close()
    assert [os.sched_getaffinity(worker) for worker in first] == [mine]


@needs_pool
def test_a_worker_that_ends_while_it_is_let_go_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    context = StepThreads(2, (min(os.sched_getaffinity(0)),) * 2)
    with context:
        pass

    def gone(*_: object) -> None:
        raise ProcessLookupError

    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_setaffinity", gone)
        context.close()
    for worker in workers_of_pool(2):
        os.sched_setaffinity(worker, os.sched_getaffinity(0))


def test_cores_as_people_write_them() -> None:
    assert format_cores([3, 0, 1, 2, 8]) == "0-3,8"
    assert format_cores([]) == ""
