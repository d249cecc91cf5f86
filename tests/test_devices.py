"""Threads and memory: what affinity, quota and the cgroup leave of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from localspec.llama import devices
from localspec.llama.devices import cgroup_cores, default_threads, free_memory

UNLIMITED_V1 = "9223372036854771712\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("physical", "logical", "allowed", "quota", "expected"),
    [
        (8, 16, 16, None, 8),
        (8, 16, 2, None, 2),
        (8, 16, 16, 3.9, 3),
        (8, 16, 2, 3.0, 2),
        (2, 2, 2, 64.0, 2),
        (8, 16, 16, 0.5, 1),
        (None, 4, 16, None, 4),  # virtual machines and ARM do not always say
        (None, None, 16, None, 1),
    ],
)
def test_threads_are_the_smallest_of_the_limits(
    physical: int | None,
    logical: int | None,
    allowed: int,
    quota: float | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: None if logical else physical)
    monkeypatch.setattr(os, "cpu_count", lambda: logical)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(allowed)), raising=False)
    monkeypatch.setattr(devices, "cgroup_cores", lambda: quota)
    assert default_threads() == expected


def test_threads_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 6)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(devices, "cgroup_cores", lambda: None)
    assert default_threads() == 6


def test_threads_of_this_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "200000 0\n"}, None),
        ({"cpu.max": "nonsense\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        (
            {
                "cpu.max": "50000 100000\n",
                "cpu/cpu.cfs_quota_us": "400000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
)
def test_cores_of_the_cgroup(files: dict[str, str], expected: float | None, tmp_path: Path) -> None:
    assert cgroup_cores(write(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1000),
        ({"memory.max": "max\n", "memory.current": "900\n", "memory.stat": ""}, 1000),
        ({"memory.max": "700\n", "memory.current": "300\n", "memory.stat": "anon 300\n"}, 400),
        ({"memory.max": "700\n", "memory.current": "600\n", "memory.stat": "anon 600\n"}, 100),
        (  # mapped models are given back when something else needs the room
            {
                "memory.max": "700\n",
                "memory.current": "650\n",
                "memory.stat": "anon 50\nfile 600\ninactive_file 400\nactive_file 200\n",
            },
            650,
        ),
        ({"memory.max": "700\n", "memory.current": "800\n", "memory.stat": "anon 800\n"}, 0),
        ({"memory.max": "9000\n", "memory.current": "300\n", "memory.stat": "anon 300\n"}, 1000),
        ({"memory.max": "700\n"}, 1000),
        (
            {
                "memory/memory.limit_in_bytes": "700\n",
                "memory/memory.usage_in_bytes": "650\n",
                "memory/memory.stat": "rss 150\nactive_file 400\ninactive_file 100\ntotal_active_file 400\n",
            },
            550,
        ),
        (
            {
                "memory/memory.limit_in_bytes": UNLIMITED_V1,
                "memory/memory.usage_in_bytes": "650\n",
                "memory/memory.stat": "rss 650\n",
            },
            1000,
        ),
    ],
)
def test_free_memory(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000, total=2000))
    assert free_memory(write(tmp_path, files)) == expected


def test_free_memory_of_this_machine() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total
