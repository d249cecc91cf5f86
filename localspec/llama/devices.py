"""What this machine offers to compute on. For now: how many threads, how much memory."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def default_threads() -> int:
    """Physical cores, at most what affinity and the cgroup's CPU quota leave.

    More threads than free cores make llama.cpp's spinning barriers several times slower, never faster.
    """
    limits = [psutil.cpu_count(logical=False) or os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    quota = cgroup_cores()
    if quota is not None:
        limits.append(max(1, int(quota)))
    return min(limits)


def cgroup_cores(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPU quota of this process's cgroup in cores (v2, then v1), None without one."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def free_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of main memory still to be had: the system's, at most what the cgroup (v2, then v1) leaves."""
    free = int(psutil.virtual_memory().available)
    for limit, usage in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            taken = int(usage.read_text()) - _page_cache(limit.with_name("memory.stat"))
            return max(0, min(free, int(limit.read_text()) - taken))
        except (OSError, ValueError):
            continue
    return free


def _page_cache(stat: Path) -> int:
    """What a cgroup uses and gives back when asked: files in memory, such as mapped models."""
    lines = (line.split() for line in stat.read_text().splitlines())
    return sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
