"""What this machine offers, seen through faked files and a faked ggml where the real machine has nothing."""

from __future__ import annotations

import ctypes
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import psutil
import pytest

from localspec.engine.types import Device
from localspec.llama import devices as module
from localspec.llama.devices import (
    Memory,
    devices,
    host_memory,
    performance_cores,
    reinstall_command,
    unused_gpu,
)

GIB = 2**30
CPU = Device("CPU", "a processor", "cpu", 8 * GIB, 16 * GIB)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_real_devices() -> None:
    found = devices()
    (cpu,) = [device for device in found if device.kind == "cpu"]
    assert cpu.name == "CPU"
    assert cpu.description
    assert 0 < cpu.bytes_free <= cpu.bytes_total
    assert cpu.bytes_total == pytest.approx(psutil.virtual_memory().total, rel=0.05)


def test_devices_are_read_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (b"CUDA0", b"NVIDIA GeForce RTX 4090", 1, 20 * GIB, 24 * GIB),
        (b"Metal", b"Apple M3", 2, 10 * GIB, 12 * GIB),
        (b"BLAS", b"OpenBLAS", 3, 0, 0),
        (b"New", b"a kind from the future \xff", 9, 1, 2),
        (b"CPU", b"a processor", 0, 8 * GIB, 16 * GIB),
    ]

    def memory(i: int, free: Any, total: Any) -> None:
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = rows[i][3]
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = rows[i][4]

    functions: dict[str, Callable[..., Any]] = {
        "count": lambda: len(rows),
        "get": lambda i: i,
        "name": lambda i: rows[i][0],
        "description": lambda i: rows[i][1],
        "type": lambda i: rows[i][2],
        "memory": memory,
    }
    monkeypatch.setattr(
        module, "ggml_function", lambda name, *_: functions[name.removeprefix("ggml_backend_dev_")]
    )
    found = devices()
    assert [(d.name, d.kind) for d in found] == [
        ("CUDA0", "gpu"),
        ("Metal", "igpu"),
        ("BLAS", "accel"),
        ("New", "accel"),
        ("CPU", "cpu"),
    ]
    assert found[0] == Device("CUDA0", "NVIDIA GeForce RTX 4090", "gpu", 20 * GIB, 24 * GIB)
    assert found[3].description == "a kind from the future \N{REPLACEMENT CHARACTER}"


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 GiB, 10 of them free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=10 * GIB))


V2 = ("memory.max", "memory.current", "memory.stat")
V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("names", [V2, V1], ids=["cgroup v2", "cgroup v1"])
class TestHostMemory:
    def test_within_a_limit(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        root = write(tmp_path, dict(zip(names, (str(4 * GIB), str(GIB)), strict=False)))
        assert host_memory(root) == Memory(total=4 * GIB, free=3 * GIB)

    def test_file_cache_is_given_back(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        stat = f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\nslab_reclaimable {GIB}"
        root = write(tmp_path, dict(zip(names, (str(4 * GIB), str(3 * GIB), stat), strict=True)))
        assert host_memory(root) == Memory(total=4 * GIB, free=5 * GIB // 2)

    def test_a_limit_above_the_machine_means_nothing(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        root = write(tmp_path, dict(zip(names, ("9223372036854771712", str(GIB)), strict=False)))
        assert host_memory(root) == Memory(total=16 * GIB, free=10 * GIB)

    def test_more_used_than_allowed(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        root = write(tmp_path, dict(zip(names, (str(GIB), str(2 * GIB)), strict=False)))
        assert host_memory(root) == Memory(total=GIB, free=0)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("files", [{}, {"memory.max": "max", "memory.current": "1"}, {"memory.max": "12"}])
def test_host_memory_without_a_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert host_memory(write(tmp_path, files)) == Memory(total=16 * GIB, free=10 * GIB)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A Linux machine on which only the returned programs and files are there."""
    there: set[str] = set()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in there else None)
    real = Path.exists
    monkeypatch.setattr(
        Path,
        "exists",
        lambda path: str(path) in there if str(path).startswith(("/dev", "/proc")) else real(path),
    )
    return there


def cards(root: Path, *vendors: str) -> Path:
    return write(root, {f"card{i}/device/vendor": vendor for i, vendor in enumerate(vendors)})


@pytest.mark.parametrize(
    ("vendors", "there", "vendor", "backend"),
    [
        (["0x10de"], [], "NVIDIA", "CUDA"),
        (["0x8086", "0x10de"], [], "NVIDIA", "CUDA"),
        ([], ["nvidia-smi"], "NVIDIA", "CUDA"),
        ([], ["/proc/driver/nvidia/version"], "NVIDIA", "CUDA"),
        (["0x1002"], [], "AMD", "VULKAN"),
        (["0x1002"], ["hipcc"], "AMD", "HIP"),
        ([], ["/dev/kfd", "hipcc"], "AMD", "HIP"),
        (["0x8086"], [], "Intel", "VULKAN"),
        (["0x8086", "0x1002"], [], "AMD", "VULKAN"),
    ],
)
def test_unused_gpu(
    tmp_path: Path, bare: set[str], vendors: list[str], there: list[str], vendor: str, backend: str
) -> None:
    bare.update(there)
    found = unused_gpu([CPU], cards(tmp_path, *vendors))
    assert found is not None
    assert found.vendor == vendor
    assert f"-DGGML_{backend}=on" in found.reinstall


@pytest.mark.parametrize("vendors", [[], ["0x1a03"], ["0x1234", "0x15ad"]], ids=["none", "BMC", "virtual"])
def test_no_gpu_to_use(tmp_path: Path, bare: set[str], vendors: list[str]) -> None:
    assert unused_gpu([CPU], cards(tmp_path, *vendors)) is None


@pytest.mark.parametrize("kind", ["gpu", "igpu"])
def test_a_gpu_in_use_is_not_unused(tmp_path: Path, bare: set[str], kind: Any) -> None:
    gpu = Device("CUDA0", "", kind, GIB, GIB)
    assert unused_gpu([gpu, CPU], cards(tmp_path, "0x10de")) is None


def test_a_blas_library_is_no_gpu(tmp_path: Path, bare: set[str]) -> None:
    assert unused_gpu([Device("BLAS", "", "accel", 0, 0), CPU], cards(tmp_path, "0x10de")) is not None


@pytest.mark.parametrize(("machine", "vendor"), [("arm64", "Apple"), ("x86_64", None)])
def test_apple(
    tmp_path: Path, bare: set[str], monkeypatch: pytest.MonkeyPatch, machine: str, vendor: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine=machine))
    found = unused_gpu([CPU], tmp_path)
    assert (found and found.vendor) == vendor
    assert found is None or "-DGGML_METAL=on" in found.reinstall


def test_reinstall_command_is_one_pip_call() -> None:
    setting, *words = shlex.split(reinstall_command("cuda"))
    assert setting == "CMAKE_ARGS=-DGGML_CUDA=on"
    assert words[:2] == ["pip", "install"]
    assert {"--force-reinstall", "--no-cache-dir"} < set(words)
    assert words[words.index("--no-binary") + 1] == "llama-cpp-python"
    assert words[-1] == f"llama-cpp-python=={llama_cpp.__version__}"


def topology(fast: str, siblings: dict[int, str]) -> dict[str, str]:
    files = {f"system/cpu/cpu{i}/topology/thread_siblings_list": text for i, text in siblings.items()}
    return files | ({"cpu_core/cpus": fast} if fast else {})


@pytest.mark.parametrize(
    ("fast", "siblings", "cores"),
    [
        # i7-12700: 8 fast cores of two threads, then 4 slow ones of one
        (
            "0-15",
            {i: f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(16)} | {i: str(i) for i in range(16, 20)},
            8,
        ),
        # threads numbered behind the cores, and two ranges
        ("0-1,4-5", {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5", 2: "2", 3: "3"}, 2),
        # no hyper-threading
        ("0-5", {i: str(i) for i in range(8)}, 6),
        ("3", {3: "3"}, 1),
        ("", {i: str(i) for i in range(8)}, None),
    ],
    ids=["12700", "numbered apart", "no threads", "one", "not hybrid"],
)
def test_performance_cores(tmp_path: Path, fast: str, siblings: dict[int, str], cores: int | None) -> None:
    assert performance_cores(write(tmp_path, topology(fast, siblings))) == cores
