"""Fixtures: the real 135M model and low-bit copies of it, tiny random ones, and the `--all` option."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.find import packaged_model

EXACT = LoadOptions(n_ctx=2048, threads=1, kv_type="f32", flash_attn="off")
"""F32 cache, no flash attention: with F32 weights a pass of any width computes the same to 3e-5."""


if hasattr(signal, "SIGHUP"):  # ignored under nohup, and then by every program a test starts
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run fuzz, kill and soak tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --all"))


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's configuration reaches a test."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging-face"))
    for name in ("LOCALSPEC_MODEL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct Q4_1 from its package."""
    path = packaged_model()
    assert path is not None, "install the demo extra: scripts/test does"
    return path


@pytest.fixture(scope="session")
def real_copy(real_model: Path, tmp_path_factory: pytest.TempPathFactory):
    """A function: quantisation name -> path of a copy of the real model in it, made once."""
    folder = tmp_path_factory.mktemp("real")

    def copy(kind: str) -> Path:
        path = folder / f"{kind.lower()}.gguf"
        return path if path.exists() else tiny.quantize(real_model, path, kind)

    return copy


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def tiny_model(tiny_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_path, EXACT) as model:
        yield model
