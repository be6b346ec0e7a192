"""runtime/machine/cgroup.py: what binds a process, at every level of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.machine.cgroup import cpu_quotas, memory_headrooms
from tests.builders import write_files

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({f"{V2}/cpu.max": "max 100000\n"}, []),
        ({f"{V2}/cpu.max": "350000 100000\n"}, [3.5]),
        ({f"{V2}/cpu.max": "50000 100000\n"}, [0.5]),
        ({f"{V2}/cpu.max": "1600000 100000\n"}, [16]),
        ({f"{V2}/cpu.max": "nonsense\n"}, []),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/b/cpu.max": "200000 100000\n",
                f"{V2}/cpu.max": "350000 100000\n",
            },
            [2, 3.5],
        ),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "200000 100000\n"}, [2]),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/b/cpu.max": "max 100000\n",
                f"{V2}/a/cpu.max": "400000 100000\n",
            },
            [4],
        ),
        ({f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, []),
        ({f"{V1}/cpu.cfs_quota_us": "200000\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, [2]),
        (
            {
                "proc/self/cgroup": "9:cpuset:/x\n3:cpu,cpuacct:/docker/c\n0::/\n",
                f"{V1}/docker/c/cpu.cfs_quota_us": "500000\n",
                f"{V1}/docker/c/cpu.cfs_period_us": "100000\n",
            },
            [5],
        ),
        (  # of another controller: it says nothing of CPU time
            {
                "proc/self/cgroup": "9:cpuset:/x\n",
                f"{V1}/x/cpu.cfs_quota_us": "100000\n",
                f"{V1}/x/cpu.cfs_period_us": "100000\n",
            },
            [],
        ),
        (
            {
                "proc/self/cgroup": "0::/c\n",
                f"{V2}/unified/c/cpu.max": "300000 100000\n",
            },
            [3],
        ),
    ],
)
def test_every_quota_counts(tmp_path: Path, files: dict, expected: list[float]) -> None:
    assert cpu_quotas(write_files(tmp_path, files)) == expected


def level(folder: str, limit: int | str, usage: int, droppable: int, version: int = 2) -> dict:
    """The files of one group."""
    limit_file, usage_file, stat = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    return {
        f"{folder}/{limit_file}": f"{limit}\n",
        f"{folder}/{usage_file}": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\n{stat} {droppable}\n",
    }


def test_every_level_of_memory_binds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        **level(f"{V2}/a/b", 1000, 600, 100),
        **level(f"{V2}/a", 800, 700, 50),
        **level(V2, "max", 5, 0),
    }
    assert memory_headrooms(write_files(tmp_path, files)) == [500, 150]
    write_files(tmp_path, level(f"{V2}/a", 800, 900, 0))
    assert memory_headrooms(tmp_path) == [500, 0]


def test_memory_under_version_1_or_the_mount_alone(tmp_path: Path) -> None:
    of_x = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory,hugetlb:/x\n0::/\n",
        **level("sys/fs/cgroup/memory/x", 900, 300, 10, version=1),
    }
    assert memory_headrooms(write_files(tmp_path / "1", of_x)) == [610]
    assert memory_headrooms(write_files(tmp_path / "2", level(V2, 700, 100, 0))) == [600]
    assert memory_headrooms(tmp_path / "none") == []
