"""Which file a name means, and what a user reads when it means none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny

from localspec.errors import BadModelFile, ExitStatus, LocalspecError, ModelNotFound
from localspec.models import find
from localspec.models.find import packaged_model
from localspec.obtain import obtain
from localspec.ui.terminal import Terminal


def find_model(name: str) -> Path:
    return obtain(name, Terminal.standard("never"))


def refusal(name: Path | str, kind: type[LocalspecError]) -> LocalspecError:
    with pytest.raises(kind) as error:
        find_model(str(name))
    assert type(error.value) is kind
    return error.value


def test_the_packaged_model_is_found_without_importing_its_package(
    tmp_path: Path, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carrier"
    package.mkdir()
    (package / "__init__.py").write_text("open(__file__ + '.imported', 'w').close()")
    (package / "m.gguf").write_bytes(tiny_path.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(find, "PACKAGE", "carrier")
    assert packaged_model() == package / "m.gguf"
    assert sorted(file.name for file in package.iterdir()) == ["__init__.py", "m.gguf"]


def test_a_package_without_a_model_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty_package").mkdir()
    (tmp_path / "empty_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(find, "PACKAGE", "empty_package")
    assert packaged_model() is None
    monkeypatch.setattr(find, "PACKAGE", "no_such_package")
    assert packaged_model() is None


def test_home_is_expanded(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_path.parent))
    assert find_model(f"~/{tiny_path.name}") == tiny_path


@pytest.mark.parametrize("name", ["nosuch.gguf", "~no_such_user/m.gguf"])
def test_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if not name:  # the current folder, as for every program
        assert refusal(name, BadModelFile).message == ". is a folder"
        return
    error = refusal(name, ModelNotFound)
    assert error.message == f"no such model file: {name}"
    assert error.exit_status == ExitStatus.MODEL_MISSING
    assert "localspec models list" in error.hint


def test_missing_below_a_file(tiny_path: Path) -> None:
    assert "no such model file" in refusal(tiny_path / "m.gguf", ModelNotFound).message


def test_a_folder(tmp_path: Path) -> None:
    error = refusal(tmp_path, BadModelFile)
    assert error.message == f"{tmp_path} is a folder"
    assert error.exit_status == ExitStatus.ERROR


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR), "wb", buffering=0) as pipe:
        pipe.write(b"GGUF")  # so that a reader would not hang this test
        assert refusal(path, BadModelFile).message == f"{path} is not a file"


def test_a_name_too_long_for_the_system(tmp_path: Path) -> None:
    assert "File name too long" in refusal(tmp_path / ("m" * 300), BadModelFile).message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path, tiny_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_path.read_bytes())
    path.chmod(0)
    error = refusal(path, BadModelFile)
    assert error.message == f"cannot read {path}: Permission denied"
    assert "permissions" in error.hint
    path.chmod(0o600)
    tmp_path.chmod(0)  # the file cannot even be looked at
    try:
        assert "Permission denied" in refusal(path, BadModelFile).message
    finally:
        tmp_path.chmod(0o700)


def test_an_unreadable_file_whoever_asks(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for method in "stat", "open":
        with monkeypatch.context() as refusing:
            refusing.setattr(Path, method, refuse)
            error = refusal(tiny_path, BadModelFile)
        assert error.message == f"cannot read {tiny_path}: Permission denied"
        assert "permissions" in error.hint


@pytest.mark.parametrize("kind", tiny.DAMAGES)
def test_damaged_files(kind: tiny.Damage, tmp_path: Path) -> None:
    """Only what the first bytes show; the rest is for llama.cpp to say (test_llama_model)."""
    path = tiny.write_damaged(tmp_path / "m.gguf", kind)
    if kind not in ("empty", "not_gguf"):
        assert find_model(str(path)) == path
        return
    error = refusal(path, BadModelFile)
    says = {"empty": "is empty", "not_gguf": "is not a GGUF (it starts with b'<!DO')"}[kind]
    assert error.message == f"{path} {says}"
    assert error.exit_status == ExitStatus.ERROR
    assert "GGUF" in error.hint


def test_every_shard_stands_for_the_first(tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path)
    assert [find_model(str(shard)) for shard in shards] == [shards[0]] * 3


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("named", [0, 1, 2])
def test_a_missing_shard_is_named(named: int, lost: int, tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path)
    shards[lost].unlink()
    error = refusal(shards[named], ModelNotFound)
    assert error.message == f"shard {shards[lost].name} is missing"
    assert error.hint == "fetch every shard"


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path)
    shards[2].write_bytes(b"")
    assert refusal(shards[0], BadModelFile).message == f"{shards[2]} is empty"


def test_names_that_only_look_like_shards(tmp_path: Path) -> None:
    for name in "m-00000-of-00000.gguf", "m-1-of-3.gguf", "m-00001-of-00003.gguf.gguf":
        path = tiny.write_llama(tmp_path / name)
        assert find_model(str(path)) == path
