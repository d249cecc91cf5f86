"""Edit pairs: reading them, decoding them with the file known, and finding them in two releases."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localspec.bench import pairs
from localspec.bench.decode import Prices
from localspec.bench.pairs import Case, Pair, Row
from localspec.chat.prompt import ChatTemplate
from localspec.errors import UsageError
from localspec.llama.model import LlamaModel, LoadOptions

FOUND = Path(__file__).parent / "data" / "found_pairs.jsonl"
SCRIPT = Path(__file__).parent.parent / "scripts" / "find_pairs.py"
CURVES = {
    "flat": Prices({n: 1 + 0.003 * (n - 1) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)}, 0.0),
    "steep": Prices({1: 1.0, 2: 1.5, 3: 1.71, 4: 2.03, 6: 2.21, 8: 3.56, 16: 4.35, 32: 8.44}, 0.0),
}
"""A GPU that waits for memory; F16 weights on one core."""
GOOD = {"name": "a", "instruction": "Do it.", "before": "x = 1\n", "after": "x = 2\n"}


@pytest.fixture(scope="module")
def model(real_model: Path) -> Iterator[LlamaModel]:
    with LlamaModel(real_model, LoadOptions(n_ctx=512, threads=1)) as model:
        yield model


def cases_of(model: LlamaModel, chosen: list[Pair]) -> list[Case]:
    template = ChatTemplate(model.chat_template, model.vocab, lambda _: None)
    return [pairs.case_of(pair, template, model.vocab) for pair in chosen]


def named(*names: str) -> list[Pair]:
    return [pair for pair in every_pair() if pair.name in names]


def every_pair() -> list[Pair]:
    """Those that come with the program, and those found in releases of packages."""
    return [*pairs.built_in(), *pairs.read_pairs(FOUND)]


def write(path: Path, *items: Any) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_the_built_in_pairs_are_many_and_of_moderate_size(model: LlamaModel) -> None:
    assert len(pairs.built_in()) >= 12
    assert len(pairs.read_pairs(FOUND)) >= 12
    for case in cases_of(model, every_pair()):
        assert 100 <= len(case.emitted) <= 1500, case.pair.name
        assert case.original != case.emitted


def test_every_pair_found_elsewhere_names_its_licence() -> None:
    for line in FOUND.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        assert item["origin"]
        assert any(name in item["licence"] for name in ("MIT", "BSD", "Apache")), item["name"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "is not an object"),
        ("{", "is not JSON"),
        (json.dumps({**GOOD, "after": 3}), 'has no text "after"'),
        (json.dumps({**GOOD, "before": " "}), 'has no text "before"'),
        (json.dumps({**GOOD, "name": "a" * 65}), "more than 64"),
        (json.dumps({**GOOD, "name": "a\x1b[1m"}), "printable"),
        (json.dumps({**GOOD, "after": "a\0"}), "NUL"),
        (json.dumps({**GOOD, "after": "\ud800"}), "surrogate"),
        (json.dumps({**GOOD, "after": "x" * (pairs.BYTES_TEXT + 1)}), "more than"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "instruction"}), "instruction"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path / "pairs.jsonl", {**GOOD, "name": "first"})
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(UsageError, match="line 3") as error:
        pairs.read_pairs(path)
    assert reason in str(error.value)


def test_bad_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "missing", "a\0b"):
        with pytest.raises(UsageError, match="cannot read"):
            pairs.read_pairs(path)
    with pytest.raises(UsageError, match="no pair"):
        pairs.read_pairs(write(tmp_path / "empty"))
    with pytest.raises(UsageError, match="line 2 has the name 'a'"):
        pairs.read_pairs(write(tmp_path / "twice", GOOD, GOOD))
    (tmp_path / "latin").write_bytes(b'{"name": "\xe9"}')
    with pytest.raises(UsageError, match="line 1"):
        pairs.read_pairs(tmp_path / "latin")
    monkeypatch.setattr(pairs, "BYTES_FILE", 40)
    with pytest.raises(UsageError, match="more than"):
        pairs.read_pairs(write(tmp_path / "long", GOOD))


def test_pairs_are_read(tmp_path: Path) -> None:
    found = pairs.read_pairs(write(tmp_path / "p", GOOD, {**GOOD, "name": "b", "origin": "x 1", "more": 1}))
    assert found == [
        Pair("a", "Do it.", "x = 1\n", "x = 2\n"),
        Pair("b", "Do it.", "x = 1\n", "x = 2\n", "x 1"),
    ]


def test_a_fence_in_the_file_gets_a_longer_one_around_it(model: LlamaModel) -> None:
    (case,) = cases_of(model, [Pair("m", "Do it.", "a\n```\nb\n```\n", "a\n```\nc\n```\n")])
    said = b"".join(map(model.vocab.piece, case.emitted)).decode()
    assert said == "````\na\n```\nc\n```\n````"
    assert b"".join(map(model.vocab.piece, case.original)).decode() == said.replace("c", "b")


def test_a_row_a_pair_and_curve_and_one_of_all(model: LlamaModel) -> None:
    cases = cases_of(model, named("python-rename-class", "toml-project"))
    rows = pairs.measure(cases, CURVES)
    assert [(row.name, row.curve) for row in rows] == [
        (name, curve) for curve in CURVES for name in ("python-rename-class", "toml-project", "all")
    ]
    for row in rows:
        assert 1 < row.ngram < row.oracle
        assert row.edit <= row.oracle
        assert row.ratio == row.edit / row.ngram
    rename, toml, pooled = rows[:3]
    assert rename.ratio > 3, "a rename is where knowing the file pays most"
    assert pooled.tokens == rename.tokens + toml.tokens
    assert min(rename.edit, toml.edit) < pooled.edit < max(rename.edit, toml.edit)


def test_the_share_is_of_the_oracles_gain() -> None:
    assert Row("a", "c", 10, 3.0, 2.0, 5.0).share == 0.6
    assert Row("a", "c", 10, 3.0, 2.0, 5.0).gain_share == 0.5
    assert Row("a", "c", 10, 1.0, 1.0, 1.0).gain_share == 1.0


def test_a_replay_says_the_changed_file_whatever_is_guessed(model: LlamaModel) -> None:
    (case,) = cases_of(model, named("python-wrap-try"))
    for sources in ((), pairs.ALONE, pairs.BOTH, (pairs.EDIT,)):
        steps = pairs.replay(case, sources, CURVES["steep"])
        assert tuple(token for step in steps for token in step.tokens) == case.emitted
        assert {name for step in steps for name in step.source.split("+")} <= {"none", *sources}


def test_the_wall_clock_is_real_and_leaves_out_what_does_not_fit(model: LlamaModel) -> None:
    small = Pair("small", "Do it.", "a = 1\nb = 2\nc = a + b\n", "a = 1\nb = 3\nc = a + b\n")
    cases = cases_of(model, [small, *named("python-rename-class")])
    rows = pairs.measure_on_the_wall(cases, model, {1: 0.01, 2: 0.012, 4: 0.015, 8: 0.03}, repeats=1)
    assert [row.name for row in rows] == ["small", "all"]
    assert all(row.curve == "wall" and row.edit > 0 and row.ngram > 0 for row in rows)
    assert pairs.measure_on_the_wall(cases[1:], model, {1: 0.01}) == []


def test_what_the_source_must_bring(model: LlamaModel) -> None:
    """Pooled over all pairs; the bounds leave a little room below what was measured."""
    rows = pairs.measure(cases_of(model, every_pair()), CURVES)
    pooled = {row.curve: row for row in rows if row.name == "all"}
    assert pooled["flat"].ratio >= 1.35
    assert pooled["steep"].ratio >= 1.1
    assert min(row.share for row in pooled.values()) >= 0.65
    assert min(row.ratio for row in rows) >= 0.95


# Finding pairs in two releases.


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("find_pairs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def wheel(path: Path, metadata: str, **sources: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p-1.dist-info/METADATA", metadata)
        for name, source in sources.items():
            archive.writestr(f"p/{name}.py", source)
    return path


@pytest.mark.parametrize(
    ("metadata", "taken"),
    [
        ("Name: p\nLicense-Expression: MIT\n", True),
        ("Name: p\nClassifier: License :: OSI Approved :: BSD License\n", True),
        ("Name: p\nLicense: Apache-2.0\n", True),
        ("Name: p\nLicense: GPL-3.0\n", False),
        ("Name: p\nLicense: MIT\nClassifier: License :: OSI Approved :: MPL 2.0\n", False),
        ("Name: p\n", False),
    ],
)
def test_only_permissive_licences_are_taken(
    tmp_path: Path, script: ModuleType, metadata: str, taken: bool
) -> None:
    assert bool(script.licence_of(wheel(tmp_path / "p.whl", metadata))) is taken


def test_changed_functions_are_found_and_chosen_the_same_every_time(
    tmp_path: Path, script: ModuleType
) -> None:
    lines = "".join(f"        value_{i} = compute(value_{i})\n" for i in range(20))
    old = f"class A:\n    def same(self):\n{lines}\n    @cached\n    def other(self):\n{lines}"
    new = old[::-1].replace("3_eulav"[::1], "3_ecirp", 1)[::-1]
    releases = script.Releases(
        "p",
        "1",
        "2",
        "MIT",
        *(
            script.modules(wheel(tmp_path / f"{n}.whl", "Name: p\n", a=source, b="def f(:"))
            for n, source in enumerate((old, new))
        ),
    )
    found = list(script.changed(releases))
    assert [pair["name"] for pair in found] == ["p:a", "p:a:A", "p:a:A.other"]
    other = found[-1]
    assert other["before"].startswith("@cached\ndef other(self):\n    value_0")
    assert other["before"] != other["after"]
    assert other["origin"] == "p 1 and 2, p/a.py"
    assert script.chosen([*found], 2, "0") == script.chosen([*found], 2, "0")
    assert len(script.chosen([*found], 2, "0")) == 2
