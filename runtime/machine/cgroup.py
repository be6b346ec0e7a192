"""The control groups of this process, version 1 and 2: what a container grants of the machine."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")

_V1_FOLDERS = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}
"""Controller -> where its hierarchy may be mounted, below the mount of all."""
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, usage, and the line of memory.stat with what can be dropped; of version 2 and 1."""


def cpu_quotas(root: Path = ROOT) -> list[float]:
    """CPUs under each quota that binds this process; empty where there is none.

    Args:
        root: where /proc and /sys are.
    """
    quotas = (_cpu_quota(folder) for folder in _folders("cpu", root))
    return [quota for quota in quotas if quota is not None]


def memory_headrooms(root: Path = ROOT) -> list[int]:
    """Bytes left under each memory limit that binds this process, the innermost first; file pages
    that can be dropped count as free. Empty where there is none.

    Args:
        root: where /proc and /sys are.
    """
    headrooms = (_memory_headroom(folder) for folder in _folders("memory", root))
    return [headroom for headroom in headrooms if headroom is not None]


def _folders(controller: str, root: Path) -> list[Path]:
    """Of the process's group under a controller and of all above it, inner ones first. A container
    may see its own group at the mount, under whatever path the host has for it."""
    mount = root / "sys/fs/cgroup"
    of_v1 = [mount / name for name in _V1_FOLDERS[controller]]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        below = Path(path.lstrip("/"))
        for at in of_v1 if controllers else (mount, mount / "unified"):
            folders += [at / part for part in (below, *below.parents)]
    return list(dict.fromkeys([*folders, mount, *of_v1]))


def _cpu_quota(folder: Path) -> float | None:
    """None where the group sets no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _memory_headroom(folder: Path) -> int | None:
    """None where the group sets no limit."""
    for limit_file, usage_file, droppable in _MEMORY_FILES:
        try:
            limit = int((folder / limit_file).read_text())
            usage = int((folder / usage_file).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # "max", a level without the controller, or the other version
        return max(0, limit - usage + int(stat.get(droppable, 0)))
    return None
