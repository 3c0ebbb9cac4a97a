"""CPU and memory limits, read from trees as kernels show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten.config import EngineConfig
from hasten.engine import build
from hasten.engine.machine import CpuLimits, cpu_limits, free_memory
from hasten.errors import DoesNotFit

GIB = 1 << 30


def tree(root: Path, cgroup: str, files: dict[str, str], *, available_kib: int = 16 * GIB // 1024) -> Path:
    """A root with /proc/meminfo, /proc/self/cgroup and files under /sys/fs/cgroup."""
    texts = {
        "proc/meminfo": f"MemTotal:       99999999 kB\nMemFree:          100 kB\nMemAvailable:   {available_kib} kB\n",
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "9:name=systemd:/\n4:memory:/job/7\n1:cpu,cpuacct:/job/7\n0::/\n"


@pytest.mark.parametrize(
    ("quota", "affinity", "threads"),
    [
        ("400000 100000", 8, 4),
        ("250000 100000", 8, 2),
        ("399000 100000", 8, 3),
        ("max 100000", 4, 4),
        ("max 100000", 8, 8),
        ("50000 100000", 8, 1),
        ("100000 50000", 8, 2),
        ("800000 100000", 3, 3),
        ("nonsense", 8, 8),
        ("", 8, 8),
    ],
)
def test_fr_063_threads_follow_quota_and_set_v2(tmp_path: Path, quota: str, affinity: int, threads: int) -> None:
    root = tree(tmp_path, "0::/box/job\n", {"box/job/cpu.max": quota + "\n"})
    assert cpu_limits(root=root, affinity=affinity).num_cpus == threads


@pytest.mark.parametrize(
    ("quota", "affinity", "threads"), [(400000, 8, 4), (250000, 8, 2), (-1, 4, 4), (-1, 8, 8), (1000, 8, 1)]
)
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_fr_063_threads_follow_quota_and_set_v1(tmp_path: Path, mount: str, quota: int, affinity: int, threads: int) -> None:
    folder = f"{mount}/job/7"
    root = tree(tmp_path, V1, {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"})
    assert cpu_limits(root=root, affinity=affinity).num_cpus == threads


def test_quota_of_a_cgroup_above_counts(tmp_path: Path) -> None:
    files = {"box/job/cpu.max": "max 100000\n", "box/cpu.max": "300000 100000\n", "cpu.max": "max 100000\n"}
    assert cpu_limits(root=tree(tmp_path, "0::/box/job\n", files), affinity=8).num_cpus == 3


def test_in_a_container_the_own_group_is_the_top_of_the_mount(tmp_path: Path) -> None:
    # the path in /proc/self/cgroup is the host's and is not there
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": str(GIB)}
    root = tree(tmp_path, V1, files)
    assert cpu_limits(root=root, affinity=8).num_cpus == 2
    assert free_memory(root=root).num_bytes == GIB


def test_hybrid_machine_reads_the_unified_tree(tmp_path: Path) -> None:
    root = tree(tmp_path, "1:cpu:/\n0::/job\n", {"unified/job/cpu.max": "200000 100000"})
    assert cpu_limits(root=root, affinity=8).num_cpus == 2


def test_without_any_cgroup_affinity_decides(tmp_path: Path) -> None:
    assert cpu_limits(root=tmp_path, affinity=5).num_cpus == 5
    assert cpu_limits(root=tmp_path) == CpuLimits(len(os.sched_getaffinity(0)), None)


def test_limits_are_said_in_words() -> None:
    assert CpuLimits(8, 2.5).describe() == "CPU set 8, cgroup quota 2.5"
    assert CpuLimits(8, None).describe() == "CPU set 8, cgroup quota none"


def test_memory_is_what_the_machine_has_available(tmp_path: Path) -> None:
    assert free_memory(root=tree(tmp_path, "0::/\n", {"memory.max": "max\n"})).num_bytes == 16 * GIB


def test_memory_of_a_v2_cgroup_counts_page_cache_as_free(tmp_path: Path) -> None:
    files = {
        "box/memory.max": f"{4 * GIB}\n",
        "box/memory.current": f"{3 * GIB}\n",
        "box/memory.stat": f"anon 1\nfile 999\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\n",
        "box/job/memory.max": "max\n",
    }
    assert free_memory(root=tree(tmp_path, "0::/box/job\n", files)).num_bytes == GIB + GIB // 2 + GIB // 4


def test_memory_of_a_v1_cgroup(tmp_path: Path) -> None:
    files = {
        "memory/job/7/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/job/7/memory.usage_in_bytes": f"{GIB}\n",
        "memory/job/7/memory.stat": f"cache 5\ntotal_inactive_file {GIB // 8}\ntotal_active_file 0\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert free_memory(root=tree(tmp_path, V1, files)).num_bytes == GIB + GIB // 8


def test_memory_over_its_limit_is_none_left_and_a_roomy_cgroup_does_not_add_any(tmp_path: Path) -> None:
    over = {"memory.max": str(GIB), "memory.current": str(2 * GIB)}
    assert free_memory(root=tree(tmp_path / "a", "0::/\n", over)).num_bytes == 0
    roomy = {"memory.max": str(64 * GIB), "memory.current": str(GIB)}
    assert free_memory(root=tree(tmp_path / "b", "0::/\n", roomy)).num_bytes == 16 * GIB


def test_this_machine_has_cpus_and_memory() -> None:
    assert 1 <= cpu_limits().num_cpus <= (os.cpu_count() or 1)
    assert free_memory().num_bytes > 1 << 20


def test_free_memory_names_the_limit_that_is_met_first(tmp_path: Path) -> None:
    files = {"box/memory.max": str(4 * GIB), "box/memory.current": "0", "memory.max": "max"}
    assert free_memory(root=tree(tmp_path / "a", "0::/box/job\n", files)).source == "/sys/fs/cgroup/box/memory.max"
    assert free_memory(root=tree(tmp_path / "b", "0::/\n", {})).source == "/proc/meminfo"


def test_nothing_that_says_what_is_free_is_an_error_and_not_zero(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"meminfo has no MemAvailable"):
        free_memory(root=tmp_path)


def test_where_nothing_says_what_is_free_the_user_has_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "free_memory", lambda: free_memory(root=tmp_path))
    with pytest.raises(DoesNotFit, match=r"not known how much memory is free.*--memory"):
        build._free_memory(EngineConfig())
    assert build._free_memory(EngineConfig(memory="2GB")).num_bytes == 2 * 1000**3
