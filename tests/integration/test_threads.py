"""`engine.threads` and `engine.bind_cores` through whole runtimes that share a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_backends import compiler_problem
from runtime import Runtime, RuntimeConfig
from runtime.machine.threads import workers_of_pool
from tests.builders import write_config

pytestmark = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = [[1, 5, 9], [7, 3, 4, 8, 20]]


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make(tmp_path: Path, **engine: Any) -> Runtime:
    folder = write_config(tmp_path, dtype="bfloat16")
    return Runtime(
        RuntimeConfig(
            model={"path": str(folder), "format": "dummy"},
            cache={"num_blocks": 40, "block_size": 8},
            graphs={"decode": "recorded", "lazy_after": 2},
            engine=engine,
        )
    )


def test_runtimes_with_other_counts_take_turns(tmp_path: Path) -> None:
    """Each records its steps between those of the other, and gives what it gives alone."""
    with make(tmp_path, threads=1) as alone:
        expected = [tuple(result.token_ids) for result in alone.generate(PROMPTS, GREEDY)]
    counts: list[int] = []
    with make(tmp_path, threads=1) as one, make(tmp_path, threads=3) as three:
        found: dict[Runtime, dict[str, list[int]]] = {one: {}, three: {}}
        for runtime in found:
            for prompt in PROMPTS:
                runtime.add_request(token_ids=prompt, params=GREEDY)
        while any(runtime.has_unfinished() for runtime in found):
            for runtime, ids in found.items():
                for delta in runtime.step():
                    ids[delta.request_id] = [*ids.get(delta.request_id, []), *delta.token_ids]
                counts.append(torch.get_num_threads())
        for runtime, ids in found.items():
            assert [tuple(tokens) for tokens in ids.values()] == expected
            stats = runtime.stats()
            assert stats.failed_steps == 0
            assert stats.step_kinds["decode"] > 5
            assert "capture failed" not in stats.graphs.eager_reasons
    assert counts == [1, 3] * (len(counts) // 2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_workers_keep_to_their_cores_until_the_runtime_is_closed(tmp_path: Path) -> None:
    mine = os.sched_getaffinity(0)
    core = max(mine)
    with make(tmp_path, bind_cores=core) as runtime:
        assert runtime.parts.threads.count == 1
        runtime.generate(PROMPTS, GREEDY)
        assert os.sched_getaffinity(0) == mine
    if len(mine) < 2:
        return
    with make(tmp_path, threads=2, bind_cores=f"{core},{min(mine)}") as runtime:
        runtime.generate(PROMPTS, GREEDY)
        workers = workers_of_pool(2)
        assert [os.sched_getaffinity(worker) for worker in workers] == [{min(mine)}]
    assert [os.sched_getaffinity(worker) for worker in workers] == [mine]
