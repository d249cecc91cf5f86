"""What this machine offers: ggml's devices, the host's memory, cores, and GPUs left unused."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from localspec.engine.types import Device
from localspec.llama.library import ggml_function

_KINDS: dict[int, Literal["cpu", "gpu", "igpu", "accel"]] = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """The host's memory in bytes: `free` is what this process can really get."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class UnusedGpu:
    """A GPU that this build of llama-cpp-python cannot use, and the command that changes that."""

    vendor: str
    reinstall: str


def devices() -> list[Device]:
    """Every ggml device with name, kind, free and total bytes, as llama.cpp sees them."""
    count = ggml_function("ggml_backend_dev_count", [], ctypes.c_size_t)
    get = ggml_function("ggml_backend_dev_get", [ctypes.c_size_t], ctypes.c_void_p)
    return [_device(get(i)) for i in range(count())]


def _device(pointer: int) -> Device:
    handle = [ctypes.c_void_p]
    name = ggml_function("ggml_backend_dev_name", handle, ctypes.c_char_p)(pointer)
    description = ggml_function("ggml_backend_dev_description", handle, ctypes.c_char_p)(pointer)
    kind = ggml_function("ggml_backend_dev_type", handle, ctypes.c_int)(pointer)
    size = ctypes.POINTER(ctypes.c_size_t)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml_function("ggml_backend_dev_memory", [*handle, size, size], None)(
        pointer, ctypes.byref(free), ctypes.byref(total)
    )
    return Device(
        name=name.decode("utf-8", "replace"),
        description=description.decode("utf-8", "replace"),
        kind=_KINDS.get(kind, "accel"),
        bytes_free=free.value,
        bytes_total=total.value,
    )


def host_memory(cgroup: Path = _CGROUP) -> Memory:
    """System memory, at most what the cgroup (v2, then v1) leaves this process."""
    system = psutil.virtual_memory()
    total, free = system.total, system.available
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _number(cgroup / limit_file), _number(cgroup / used_file)
        if limit is not None and used is not None:
            total, free = min(total, limit), min(free, max(0, limit - used + _reclaimable(cgroup)))
            break
    return Memory(total, free)


def free_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes of main memory still to be had."""
    return host_memory(cgroup).free


def _reclaimable(cgroup: Path) -> int:
    """Bytes of clean file cache that count as used but are given back when asked for."""
    for path in (cgroup / "memory.stat", cgroup / "memory/memory.stat"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        return sum(
            int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file "))
        )
    return 0


def unused_gpu(found: list[Device], drm: Path = Path("/sys/class/drm")) -> UnusedGpu | None:
    """The GPU this machine has and llama.cpp does not see, or None."""
    if any(device.kind in ("gpu", "igpu") for device in found):
        return None
    vendors = {_VENDORS.get(_text(path)) for path in drm.glob("card*/device/vendor")}
    if "NVIDIA" in vendors or shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        return UnusedGpu("NVIDIA", reinstall_command("cuda"))
    if "AMD" in vendors or Path("/dev/kfd").exists():
        return UnusedGpu("AMD", reinstall_command("hip" if shutil.which("hipcc") else "vulkan"))
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        return UnusedGpu("Apple", reinstall_command("metal"))
    if "Intel" in vendors:
        return UnusedGpu("Intel", reinstall_command("vulkan"))
    return None


def reinstall_command(backend: str) -> str:
    """The exact command that rebuilds llama-cpp-python for a ggml backend."""
    return (
        f'CMAKE_ARGS="-DGGML_{backend.upper()}=on" pip install --force-reinstall --no-cache-dir --no-binary '
        f"llama-cpp-python llama-cpp-python=={api_version()}"
    )


def api_version() -> str:
    """Version of the installed llama-cpp-python."""
    import llama_cpp

    return str(llama_cpp.__version__)


def default_threads() -> int:
    """Physical cores (performance cores where the system tells), at most what affinity and quota leave.

    More threads than free cores make llama.cpp's spinning barriers several times slower, never faster.
    """
    limits = [performance_cores() or psutil.cpu_count(logical=False) or os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    quota = cgroup_cores()
    if quota is not None:
        limits.append(max(1, int(quota)))
    return min(limits)


def performance_cores(cpus: Path = Path("/sys/devices")) -> int | None:
    """Cores of the fast kind on a hybrid processor, None if all are alike or the system does not tell."""
    text = _text(cpus / "cpu_core/cpus")  # Intel hybrid on Linux
    if not text:
        return None
    siblings = {_text(cpus / f"system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in _ranges(text)}
    return len(siblings) or None


def _ranges(text: str) -> list[int]:
    """ "0-3,8" -> [0, 1, 2, 3, 8]."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def cgroup_cores(root: Path = _CGROUP) -> float | None:
    """CPU quota of this process's cgroup in cores (v2, then v1), None without one."""
    quota, _, period = _text(root / "cpu.max").partition(" ")
    if not period:
        quota, period = _text(root / "cpu/cpu.cfs_quota_us"), _text(root / "cpu/cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None
