"""Kept caches: what comes back is what was there, and nothing else reaches llama.cpp."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
from conftest import EXACT

from localspec.chat import state
from localspec.chat.state import FEWEST_TOKENS, MAGIC, Cache, restore, save, tidy
from localspec.llama.model import LlamaModel, SavedState

SHORT = replace(EXACT, n_ctx=512)
TOKENS = [3 + 7 * i % 250 for i in range(300)]
LAST = 9
HERE = "1.0 CPU threads 1"


@pytest.fixture(scope="module")
def draft_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("draft") / "draft.gguf", n_layer=1)


@pytest.fixture
def target(tiny_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_path, SHORT) as model:
        yield model


@pytest.fixture
def draft(draft_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(draft_path, SHORT) as model:
        yield model


def keep(folder: Path, session: str = "one", **models: LlamaModel) -> str:
    return save(folder, session, caches(**models), HERE, known=["one", "two", "three"])


def caches(**models: LlamaModel) -> dict[str, Cache]:
    return {name: Cache(model, f"print of {name}") for name, model in models.items()}


def take(folder: Path, session: str = "one", **models: LlamaModel) -> str:
    return restore(folder, session, caches(**models), HERE)


def file(folder: Path, session: str = "one") -> Path:
    return folder / f"{session}.caches"


@pytest.fixture
def kept(tmp_path: Path, target: LlamaModel) -> Path:
    """A folder in which the target's state after TOKENS is kept as session "one"."""
    target.eval(TOKENS, rows=0)
    assert keep(tmp_path, target=target) == ""
    return tmp_path


def never_reached(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: SavedState) -> bool:
        raise AssertionError("llama.cpp would have seen it")

    monkeypatch.setattr(LlamaModel, "restore", lambda self, found: refuse(found))


def test_both_models_go_on_where_they_were(
    tmp_path: Path, target: LlamaModel, draft: LlamaModel, tiny_path: Path, draft_path: Path
) -> None:
    target.eval(TOKENS, rows=0)
    draft.eval(TOKENS[:280], rows=0)
    assert keep(tmp_path, target=target, draft=draft) == ""
    with LlamaModel(tiny_path, SHORT) as one, LlamaModel(draft_path, SHORT) as two:
        assert take(tmp_path, target=one, draft=two) == ""
        for new, old, tokens in ((one, target, TOKENS), (two, draft, TOKENS[:280])):
            assert list(new.tokens) == tokens
            assert new.save().tokens == tuple(tokens), "nothing is left to be read"
            np.testing.assert_array_equal(new.eval([LAST]), old.eval([LAST]))


@pytest.mark.parametrize("write", [tiny.write_swa, tiny.write_recurrent, tiny.write_hybrid])
def test_every_kind_of_cache(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    with LlamaModel(path, SHORT) as old, LlamaModel(path, SHORT) as new:
        old.eval(TOKENS, rows=0)
        assert keep(tmp_path, target=old) == ""
        assert take(tmp_path, target=new) == ""
        np.testing.assert_array_equal(new.eval([LAST]), old.eval([LAST]))


def test_a_draft_that_is_loaded_later_asks_then(
    tmp_path: Path, target: LlamaModel, draft: LlamaModel, draft_path: Path
) -> None:
    target.eval(TOKENS, rows=0)
    draft.eval(TOKENS, rows=0)
    keep(tmp_path, target=target, draft=draft)
    target.rewind(0)
    assert take(tmp_path, target=target) == ""
    with LlamaModel(draft_path, SHORT) as late:
        assert take(tmp_path, draft=late) == ""
        assert list(late.tokens) == TOKENS
    assert "no state of the draft" in (
        keep(tmp_path, target=target) or take(tmp_path, target=target, draft=draft)
    )


def test_a_draft_that_was_never_asked_is_not_kept(
    tmp_path: Path, target: LlamaModel, draft: LlamaModel
) -> None:
    target.eval(TOKENS, rows=0)
    assert keep(tmp_path, target=target, draft=draft) == ""
    assert take(tmp_path, target=target) == ""
    assert "draft" in take(tmp_path, draft=draft)


def test_the_file_is_the_owners_and_alone(kept: Path) -> None:
    assert os.listdir(kept) == ["one.caches"]
    assert stat.S_IMODE(file(kept).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700


# What must not reach llama.cpp


def test_a_flipped_bit_anywhere_is_noticed(
    kept: Path, target: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_reached(target, monkeypatch)
    whole = file(kept).read_bytes()
    head = whole.index(b"\n", len(MAGIC)) + 1
    places = [*range(head), *range(head, len(whole), len(whole) // 40), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file(kept).write_bytes(damaged)
        assert take(kept, target=target) != "", place
    assert list(target.tokens) == TOKENS, "what was in use goes on"


def test_a_file_cut_anywhere_is_noticed(
    kept: Path, target: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_reached(target, monkeypatch)
    whole = file(kept).read_bytes()
    head = whole.index(b"\n", len(MAGIC)) + 1
    for end in [*range(head + 2), *range(head, len(whole), len(whole) // 30), len(whole) - 1]:
        file(kept).write_bytes(whole[:end])
        assert take(kept, target=target) != "", end
    file(kept).write_bytes(whole + b"x")
    assert "damaged" in take(kept, target=target)


FOREIGN: list[tuple[str, dict[str, Any], str, str]] = [
    ("model", {}, HERE, "another model"),
    ("machine", {}, "1.1 CPU threads 1", "another version or machine"),
    ("kv", {"kv_type": "f16"}, HERE, "another cache type"),
    ("flash", {"flash_attn": "on"}, HERE, "another flash attention"),
    ("context", {"n_ctx": 768}, HERE, "another context size"),
    ("layers", {"gpu_layers": 0}, HERE, "another placement"),
    ("split", {"split": (1.0,)}, HERE, "another placement"),
]


@pytest.mark.parametrize(("what", "options", "conditions", "why"), FOREIGN, ids=[case[0] for case in FOREIGN])
def test_a_state_of_other_conditions_is_named(
    what: str,
    options: dict[str, Any],
    conditions: str,
    why: str,
    kept: Path,
    tiny_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LlamaModel(tiny_path, replace(SHORT, **options)) as other:
        never_reached(other, monkeypatch)
        given = {"target": Cache(other, "x" if what == "model" else "print of target")}
        assert why in restore(kept, "one", given, conditions)


def forge(kept: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the header of the only cache and its digest, as somebody might who knows the format."""
    whole = file(kept).read_bytes().removeprefix(MAGIC)
    line, _, rest = whole.partition(b"\n")
    said = json.loads(line.partition(b" ")[2])
    change(said)
    head = json.dumps(said).encode()
    file(kept).write_bytes(MAGIC + state._digest(head).encode() + b" " + head + b"\n" + rest)


def setting(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda said: said.update({name: value})


@pytest.mark.parametrize("name", ["name", "bound", "tokens", "bytes", "sha256"])
@pytest.mark.parametrize("value", [None, -1, 2**70, 1, "x", [], {}, True])
def test_forged_headers(
    name: str, value: object, kept: Path, target: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_reached(target, monkeypatch)
    forge(kept, setting(name, value))
    assert take(kept, target=target) != ""
    forge(kept, lambda said: said.pop(name))
    assert take(kept, target=target) != ""


def test_forged_tokens_and_bytes(kept: Path, target: LlamaModel) -> None:
    """With all sums right: ids must be the vocabulary's, and llama.cpp's own refusal is a reason too."""
    line, _, rest = file(kept).read_bytes().removeprefix(MAGIC).partition(b"\n")
    tokens, data = rest[: 4 * len(TOKENS)], rest[4 * len(TOKENS) :]
    head = MAGIC + line + b"\n"
    for ids, content, why in (
        (b"\xff\xff\xff\xff" + tokens[4:], data, "of another model"),
        (b"\xff\xff\xff\x7f" + tokens[4:], data, "of another model"),
        (tokens, bytes(len(data)), "llama.cpp refuses"),
    ):
        file(kept).write_bytes(head + ids + content)
        digest = state._digest(ids, content)
        forge(kept, setting("sha256", digest))
        assert why in take(kept, target=target)
    assert np.isfinite(target.eval(TOKENS[:20])).all(), "the chat goes on"


@pytest.mark.parametrize("kind", ["nothing", "empty", "folder", "pipe"])
def test_what_is_no_file(kind: str, tmp_path: Path, target: LlamaModel) -> None:
    path = file(tmp_path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    assert take(tmp_path, target=target) != ""


# What is kept, and how much


def test_short_and_nameless_conversations_are_not_kept(tmp_path: Path, target: LlamaModel) -> None:
    folder = tmp_path / "states"
    assert "fewer than" in keep(folder, target=target)
    target.eval(TOKENS[: FEWEST_TOKENS - 1], rows=0)
    assert "fewer than" in keep(folder, target=target)
    target.eval([LAST], rows=0)
    assert "which file" in save(folder, "one", {"target": Cache(target, "")}, HERE, known=["one"])
    assert not folder.exists()


def test_the_oldest_states_go_first(tmp_path: Path, target: LlamaModel) -> None:
    target.eval(TOKENS, rows=0)
    for age, session in enumerate(("two", "three", "one")):
        keep(tmp_path, session, target=target)
        os.utime(file(tmp_path, session), (age, age))
    size = file(tmp_path).stat().st_size
    known = ["one", "two", "three", "four"]

    def save_four(most: int) -> tuple[str, list[str]]:
        why = save(tmp_path, "four", caches(target=target), HERE, known=known, most_bytes=most)
        return why, sorted(path.stem for path in tmp_path.iterdir())

    assert save_four(3 * size) == ("", ["four", "one", "three"])
    assert save_four(3 * size) == ("", ["four", "one", "three"]), "its own old state does not count"
    assert save_four(size) == ("", ["four"])
    why, left = save_four(size - 1)
    assert "at most" in why
    assert left == ["four"], "the last good one stays"
    assert take(tmp_path, "four", target=target) == ""


def test_states_without_a_session_go(kept: Path) -> None:
    for name in (".gone.part", ".busy.part", "other.txt", "gone.caches"):
        (kept / name).touch()
    os.utime(kept / ".gone.part", (1, 1))
    tidy(kept, ["one"])
    assert sorted(os.listdir(kept)) == [".busy.part", "one.caches", "other.txt"]


def test_a_full_disk_is_seen_before(kept: Path, target: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file(kept).read_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    assert "the disk has 1024 left" in keep(kept, target=target)
    assert file(kept).read_bytes() == before
    assert os.listdir(kept) == ["one.caches"]


def test_a_write_that_fails_leaves_the_old_state(
    kept: Path, target: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.eval([LAST], rows=0)
    for name in ("replace", "open"):
        with monkeypatch.context() as failing:
            failing.setattr(
                os, name, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            assert keep(kept, target=target) == "the disk refuses: No space left on device"
        assert os.listdir(kept) == ["one.caches"]
    assert take(kept, target=target) == ""
    assert list(target.tokens) == TOKENS
