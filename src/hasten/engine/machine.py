"""What this process may use: CPUs and memory, by affinity, cgroup (v1 and v2) and /proc.

Functions take `root`, the file system they read, so that tests can build one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
# v1 writes "no limit" as the largest multiple of the page size; nothing real comes near
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """`quota` is CPU time per time, None without a limit; `affinity` the number of CPUs this process may run on."""

    affinity: int
    quota: float | None

    @property
    def num_cpus(self) -> int:
        """Threads that can compute at once, at least 1. A quota of 2.5 is 2: a third thread would be stopped half the
        time, and a step waits for its slowest thread."""
        return max(1, self.affinity if self.quota is None else min(self.affinity, int(self.quota)))

    def describe(self) -> str:
        """ "CPU set 4, cgroup quota 2.5"."""
        return f"CPU set {self.affinity}, cgroup quota {'none' if self.quota is None else f'{self.quota:g}'}"


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What this process could still get; `source` is the file with the limit that is met first."""

    num_bytes: int
    source: str


def cpu_limits(*, root: Path = _ROOT, affinity: int | None = None) -> CpuLimits:
    """The CPUs of this process; `affinity` overrides what the kernel says of its CPU set."""
    quotas = [*_v2_cpu_quotas(root), *_v1_cpu_quotas(root)]
    return CpuLimits(len(os.sched_getaffinity(0)) if affinity is None else affinity, min(quotas, default=None))


def free_memory(*, root: Path = _ROOT) -> FreeMemory:
    """The least of what the machine and each cgroup above this process leave free.

    Page cache counts as free, as it does in MemAvailable. Raises OSError if neither /proc/meminfo nor a cgroup says anything.
    """
    free = []
    if "MemAvailable:" in _text(root / "proc/meminfo"):
        free.append((_keyed(root / "proc/meminfo", "MemAvailable:") * 1024, root / "proc/meminfo"))
    for folder in _folders(root, "", ""):
        limit = _number(folder / "memory.max")
        if limit is not None:
            cache = _keyed(folder / "memory.stat", "inactive_file") + _keyed(folder / "memory.stat", "active_file")
            free.append((limit - (_number(folder / "memory.current") or 0) + cache, folder / "memory.max"))
    for folder in _folders(root, "memory", "memory"):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT_BYTES:
            stat = folder / "memory.stat"
            cache = _keyed(stat, "total_inactive_file") + _keyed(stat, "total_active_file")
            free.append((limit - (_number(folder / "memory.usage_in_bytes") or 0) + cache, folder / "memory.limit_in_bytes"))
    if not free:
        raise OSError(f"{root / 'proc/meminfo'} has no MemAvailable, and no cgroup sets a limit")
    num_bytes, path = min(free, key=lambda found: found[0])
    return FreeMemory(max(0, int(num_bytes)), f"/{path.relative_to(root)}")


def _v2_cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "", ""):
        words = _text(folder / "cpu.max").split()  # "max 100000" or "250000 100000" (microseconds)
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])


def _v1_cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "cpu", "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:  # -1: no limit
            yield quota / period


def _folders(root: Path, controller: str, mount: str) -> Iterator[Path]:
    """This process's cgroup and every one above it, for a v1 controller, or "" for v2. Any of them may set a limit.

    In a container the path may name a place that is not mounted there; its own cgroup is then the top of the mount.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        own = PurePosixPath("/") / path
        for top in dict.fromkeys(("unified", "") if not controller else (mount, controllers)):
            base = root / "sys/fs/cgroup" / top
            for place in (own, *own.parents):
                yield base / place.relative_to("/")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", for no such file and for anything else."""
    try:
        return int(_text(path))
    except ValueError:
        return None


def _keyed(path: Path, key: str) -> int:
    """The number after `key` in a file of lines; 0 if it is not there."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return 0
