"""`localspec doctor`: what this machine can do, what is wrong, and one fix for each."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice
from typing import Any

import psutil

from localspec import __version__, config
from localspec.config import Settings
from localspec.drafters import NAMED
from localspec.engine.types import Device
from localspec.learned import Learned
from localspec.llama import devices
from localspec.llama.devices import Memory, UnusedGpu
from localspec.llama.library import HEAD_SYMBOLS, has_symbol, system_info
from localspec.models.reasons import gib

WAITS = 1.3
"""A pass that costs at most this many single ones hides its arithmetic behind reading the weights."""
MOST_WAITS = 3
"""Models and conditions that are told of, the latest first."""
PACKAGES = ("llama-cpp-python", "huggingface-hub", "numpy", "prompt-toolkit", "typer")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong in one sentence, and what mends it."""

    problem: str
    fix: str


@dataclass(frozen=True, slots=True)
class Waits:
    """What passes of a model that ran here wait for. `width`: the most tokens whose pass waits for memory;
    1: every pass wider than a single one waits for arithmetic. `widest`: most tokens that were measured."""

    conditions: str
    width: int
    widest: int

    @staticmethod
    def of(conditions: str, seconds: Mapping[int, float]) -> Waits:
        """`seconds`: tokens of a pass -> its cost, 1 among them.

        The widest that is cheap counts, dearer narrower ones or not: fewer tokens are padded up to it.
        """
        width = max(n for n, cost in seconds.items() if cost <= WAITS * seconds[1])
        return Waits(conditions, width, max(seconds))


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. Sizes in bytes; `load` is the mean number of busy cores over the last minute."""

    versions: dict[str, str]
    build: str
    devices: tuple[Device, ...]
    memory: Memory
    cores: dict[str, int | float | None]
    threads: int
    load: float
    folders: dict[str, str]
    head_symbols: dict[str, bool]
    unused_gpu: UnusedGpu | None
    waits: tuple[Waits, ...] = ()
    sources: tuple[str, ...] = (*NAMED, "self", "a model")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> Report:
    """Look at this machine; nothing is loaded or changed."""
    found = devices.devices()
    return Report(
        versions={
            "localspec": __version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            **{name: version(name) for name in PACKAGES},
        },
        build=system_info(),
        devices=tuple(found),
        memory=devices.host_memory(),
        cores={
            "logical": os.cpu_count(),
            "physical": psutil.cpu_count(logical=False),
            "performance": devices.performance_cores(),
            "quota": devices.cgroup_cores(),
        },
        threads=devices.default_threads(),
        load=os.getloadavg()[0] if sys.platform != "win32" else 0.0,
        folders={
            "config": str(config.config_file()),
            "models": str(config.models_folder()),
            "cache": str(config.cache_folder()),
        },
        head_symbols={name: has_symbol(symbol) for name, symbol in HEAD_SYMBOLS.items()},
        unused_gpu=devices.unused_gpu(found),
        waits=tuple(learned_waits()),
    )


def learned_waits() -> list[Waits]:
    """From the pass costs that earlier sessions measured, the latest session first; MOST_WAITS at most."""
    dated = []
    for path in Learned.of("").path.parent.glob("*.json"):
        with suppress(OSError):
            dated.append((path.stat().st_mtime, path.stem))
    tables = (Learned.of(stem).costs for _, stem in sorted(dated, reverse=True))
    waits = (Waits.of(name, seconds) for costs in tables for name, seconds in costs.items())
    return list(islice(waits, MOST_WAITS))


def diagnose(report: Report, settings: Settings) -> list[Finding]:
    """What is wrong with the machine or with the settings in force. Pure."""
    return [
        *_about_devices(report, settings),
        *_about_cache(report, settings),
        *_about_load(report, settings),
    ]


def _about_devices(report: Report, settings: Settings) -> Iterator[Finding]:
    gpus = [device.name for device in report.devices if device.kind in ("gpu", "igpu")]
    if report.unused_gpu:
        yield Finding(
            f"this build of llama-cpp-python cannot use the {report.unused_gpu.vendor} GPU of this machine",
            report.unused_gpu.reinstall,
        )
    if gpus and settings.gpu_layers == 0:
        yield Finding(f"{gpus[0]} is not used: --gpu-layers is 0", "leave --gpu-layers away")
    drafts = [name for name in settings.draft.split(",") if name.strip() not in ("auto", "none", "ngram")]
    if gpus and drafts and settings.gpu_layers is not None and settings.gpu_layers >= 0:
        yield Finding(
            f"with --gpu-layers {settings.gpu_layers} the draft {drafts[0]} may run on the processor, "
            "where its guesses cost more than they save",
            "leave --gpu-layers away: the draft is placed first",
        )


def _about_cache(report: Report, settings: Settings) -> Iterator[Finding]:
    quantised = (settings.kv_type or "").startswith("q")
    if quantised and settings.flash_attn == "off":
        yield Finding(
            f"a {settings.kv_type} cache needs flash attention, which is off", "set --flash-attn to auto"
        )
    if quantised and any(device.name.startswith(("Metal", "MTL")) for device in report.devices):
        yield Finding(f"a {settings.kv_type} cache is slow on Metal", "set --kv-type to f16")


def _about_load(report: Report, settings: Settings) -> Iterator[Finding]:
    threads = settings.threads or report.threads
    if threads > report.threads:
        yield Finding(
            f"{threads} threads on {report.threads} free cores wait for each other",
            f"set -t {report.threads}",
        )
    elif threads > 1 and report.load > max(1.0, report.threads / 2):
        yield Finding(
            f"other programs keep {report.load:.1f} cores busy; threads then wait for each other",
            f"stop them, or set -t {max(1, int(report.threads - report.load))}",
        )
    if report.memory.free < report.memory.total / 10:
        yield Finding(
            f"memory is nearly full: {gib(report.memory.free)} of {gib(report.memory.total)} are free",
            "close other programs, or take a smaller model",
        )


def lines(report: Report, findings: list[Finding]) -> Iterator[str]:
    """The report for people."""
    for name, value in report.versions.items():
        yield f"{name:<18} {value}"
    yield f"{'build':<18} {report.build}"
    for device in report.devices:
        free, total = gib(device.bytes_free), gib(device.bytes_total)
        yield f"{'device ' + device.name:<18} {device.description} ({device.kind}), {free} of {total} free"
    yield f"{'memory':<18} {gib(report.memory.free)} of {gib(report.memory.total)} free"
    cores = ", ".join(f"{n:g} {kind}" for kind, n in report.cores.items() if n is not None)
    yield f"{'cores':<18} {cores}; {report.threads} threads by default, load {report.load:.1f}"
    for name, folder in report.folders.items():
        yield f"{name + ' in':<18} {folder}"
    yield f"{'sources':<18} {', '.join(report.sources)}"
    for waits in report.waits:
        yield f"{'passes wait for':<18} {_waits(waits)} ({waits.conditions})"
    if not report.waits:
        yield f"{'passes wait for':<18} unknown until a model has run here"
    missing = [name for name, there in report.head_symbols.items() if not there]
    yield f"{'for heads':<18} {'lacks ' + ', '.join(missing) if missing else 'every symbol is there'}"
    yield ""
    if not findings:
        yield "Nothing is wrong."
    for finding in findings:
        yield f"- {finding.problem[0].upper()}{finding.problem[1:]}."
        yield f"  {finding.fix}"


def _waits(waits: Waits) -> str:
    """In words; the conditions behind it tell one model's passes from another's."""
    if waits.widest == 1:
        return "unknown: only passes over one token were measured"
    if waits.width == 1:
        return "arithmetic: each guess costs"
    if waits.width == waits.widest:
        return f"memory up to {waits.width} tokens at least: guesses cost little"
    return f"memory up to {waits.width} tokens, then arithmetic"
