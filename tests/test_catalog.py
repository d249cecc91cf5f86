"""Model names, which files they mean, and the catalogue: every entry, and every way to get one wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import config
from localspec.errors import ModelNotFound, UsageError
from localspec.models import catalog, names
from localspec.models.catalog import GIB, CatalogFile, Entry
from localspec.models.names import CatalogRef, HubRef, PathRef, match_quant, parse_name, pick, unsafe

# --- what a name means ---


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("qwen3-8b", CatalogRef("qwen3-8b")),
        ("Qwen3-8B:Q6_K", CatalogRef("qwen3-8b", "Q6_K")),
        ("qwen2.5-coder-7b:ud-q4_k_xl", CatalogRef("qwen2.5-coder-7b", "ud-q4_k_xl")),
        ("qwen3-8b:Qwen3-8B-Q6_K.gguf", CatalogRef("qwen3-8b", "Qwen3-8B-Q6_K.gguf")),
        ("unsloth/Qwen3-8B-GGUF", HubRef("unsloth/Qwen3-8B-GGUF")),
        ("unsloth/Qwen3-8B-GGUF:q4_k_m", HubRef("unsloth/Qwen3-8B-GGUF", "q4_k_m")),
        ("a_b/c.d:UD-Q5_K_M/x-00001-of-00003.gguf", HubRef("a_b/c.d", "UD-Q5_K_M/x-00001-of-00003.gguf")),
        ("model.gguf", PathRef(Path("model.gguf"))),
        ("models/model.GGUF", PathRef(Path("models/model.GGUF"))),
        ("./org/repo", PathRef(Path("./org/repo"))),
        ("../x", PathRef(Path("../x"))),
        ("..", PathRef(Path(".."))),
        ("/srv/models/a b.gguf", PathRef(Path("/srv/models/a b.gguf"))),
        ("~/models/ü.gguf", PathRef(Path("~/models/ü.gguf"))),
        ("C:\\models\\x.gguf", PathRef(Path("C:\\models\\x.gguf"))),
        ("c:/models", PathRef(Path("c:/models"))),
        ("org/../../x.gguf", PathRef(Path("org/../../x.gguf"))),
    ],
)
def test_names(text: str, means: object) -> None:
    assert parse_name(text) == means


TRICKS = [
    "",
    "  ",
    "org/repo/",
    "org/repo/more",
    "org/..",
    "org/../../etc/passwd",
    "org//repo",
    "-org/repo",
    "org/repo.git",
    "org/re--po",
    "org/re..po",
    "org/.repo",
    "org/re po",
    "org/r\u00e9po",
    "org/repo%2f..",
    "org\\repo",
    "org/repo\\..\\..",
    "org/repo:../../x.gguf",
    "org/repo:/etc/x.gguf",
    "org/repo:~/x.gguf",
    "org/repo:C:\\x.gguf",
    "org/repo:a\\b.gguf",
    "org/repo:a//b.gguf",
    "org/repo:./b.gguf",
    "org/repo:",
    "org/repo:q4/..",
    "org/repo:q4_0:q8_0",
    "qwen3-8b:",
    "qwen3-8b:..",
    "qwen3 8b",
    "qwen3-8b\x00.gguf",
    "org/repo\n",
    "org/repo\x1b[2J",
    "\x9b31m.gguf",
    "file:///etc/passwd",
    "file:model.gguf",
    "https://example.org/org/repo",
    "hf://org/repo",
    "HTTP:org/repo",
    "x" * 90 + "/" + "y" * 90,
]


@pytest.mark.parametrize("text", TRICKS)
def test_tricks_are_no_names(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_name(text)
    assert "org/repo[:QUANT]" in caught.value.hint


@given(st.text(st.sampled_from("ab0./\\:~-_ %\x00\n\u202e"), max_size=12) | st.text(max_size=12))
def test_whatever_reaches_the_hub_is_a_plain_name(text: str) -> None:
    try:
        ref = parse_name(text)
    except UsageError:
        return
    if isinstance(ref, HubRef):
        org, repo = ref.repo.split("/")
        assert not {org, repo} & {"", ".", ".."}
        assert ref.repo.isascii()
        assert not set(ref.repo) & set("\\:~% \n\x00")
        assert ref.quant is None or not unsafe(ref.quant)
        assert config.models_folder() in (config.models_folder() / org / repo / (ref.quant or "x")).parents


UNSAFE = ["", "/a.gguf", "../a.gguf", "a/../b.gguf", "a/./b.gguf", "a//b.gguf", "a/", "..", "~/a.gguf"]
UNSAFE += ["a/~b.gguf", "a\\b.gguf", "C:a.gguf", "C:/a.gguf", "file://a.gguf", "a?.gguf", "a*.gguf"]
UNSAFE += ["a\x00.gguf", "a\n.gguf", "a\x1b.gguf", "a\x9b.gguf", "a\u202e.gguf", "\ud800.gguf", 'a".gguf']
UNSAFE += ["a|b.gguf", " a.gguf", "a /b.gguf", "a./b.gguf"]


@pytest.mark.parametrize("path", UNSAFE)
def test_unsafe_paths(path: str) -> None:
    assert unsafe(path)


@pytest.mark.parametrize(
    "path", ["a.gguf", "UD-Q5_K_M/a-00001-of-00003.gguf", ".hidden.gguf", "ä b (1).gguf"]
)
def test_safe_paths(path: str) -> None:
    assert unsafe(path) == ""


# --- which files of a repository ---


def test_a_quant_is_a_whole_part_of_the_name() -> None:
    files = [
        "m-BF16.gguf",
        "m-F16.gguf",
        "m-Q4_K_S.gguf",
        "m-UD-Q4_K_M.gguf",
        "m-Q4_K_M.gguf",
        "m-IQ4_XS.gguf",
    ]
    assert match_quant(files, "f16") == ["m-F16.gguf"]
    assert match_quant(files, "q4_k_m") == ["m-Q4_K_M.gguf"]
    assert match_quant(files, "UD-Q4_K_M") == ["m-UD-Q4_K_M.gguf"]
    assert match_quant(files[:-2], "q4_k_m") == ["m-UD-Q4_K_M.gguf"]
    for part in ("q4_k", "q4", "k_m", "4_xs", "m-q4", "16", "."):
        assert match_quant(files, part) == [], part


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("Phi-4-mini-instruct.Q8_0.gguf", "q8_0"),
        ("Magistral-Small-2506_Q8_0.gguf", "q8_0"),
        ("gemma-4-26B_q4_0-it.gguf", "Q4_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q6_K/m-00001-of-00002.gguf", "q6_k"),
        ("m-Q6_K-00001-of-00002.gguf", "q6_k"),
        ("Q6_K.gguf", "q6_k"),
    ],
)
def test_publishers_spell_it_in_many_ways(file: str, quant: str) -> None:
    assert match_quant([file], quant) == [file]


def test_heads_and_projectors_are_found_by_name_only() -> None:
    companions = ["mtp-m-Q8_0.gguf", "MTP/m-Q8_0.gguf", "dflash-m-Q8_0.gguf", "dspark-m-Q8_0.gguf"]
    companions += ["eagle3-m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "m-Q8_0-mmproj.gguf", "m-imatrix.gguf"]
    companions += ["draft/m-Q8_0.gguf", "imatrix_unsloth.gguf"]
    files = [*companions, "m-MTP-Q8_0.gguf", "README.md", "m-Q8_0.safetensors"]
    assert pick(files, "q8_0", "r") == pick(files, None, "r") == ("m-MTP-Q8_0.gguf",)
    for companion in companions:
        assert pick(files, companion, "r") == (companion,)


def test_a_set_is_taken_whole_in_order() -> None:
    shards = tuple(f"Q4_0/m-Q4_0-0000{i}-of-00003.gguf" for i in (1, 2, 3))
    for wanted in ("q4_0", None, *shards):
        assert pick(shards[::-1], wanted, "r") == shards
    with pytest.raises(ModelNotFound, match="lacks 1 shards"):
        pick(shards[:2], "q4_0", "r")
    assert names.shard_names("m-00001-of-00000.gguf") == ("m-00001-of-00000.gguf",)


def test_without_a_quant_the_usual_one_is_taken() -> None:
    assert pick(["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf"], None, "r") == ("m-Q4_K_M.gguf",)
    assert pick(["m-Q8_0.gguf", "m-BF16.gguf", "m-Q4_0.gguf"], None, "r") == ("m-Q4_0.gguf",)
    assert pick(["m-IQ3_S.gguf"], None, "r") == ("m-IQ3_S.gguf",)
    with pytest.raises(UsageError, match="2 models") as caught:
        pick(["m-IQ3_S.gguf", "m-BF16.gguf"], None, "org/r")
    assert "m-IQ3_S.gguf, m-BF16.gguf" in caught.value.hint


def test_what_fits_twice_is_listed_and_not_guessed() -> None:
    files = ["m-Q4_K_M.gguf", "m-128K-Q4_K_M.gguf", "m-Q8_0.gguf"]
    with pytest.raises(UsageError, match="org/r:q4_k_m fits 2 files") as caught:
        pick(files, "q4_k_m", "org/r")
    assert "m-Q4_K_M.gguf, m-128K-Q4_K_M.gguf" in caught.value.hint
    assert pick(files, "m-Q4_K_M.gguf", "org/r") == ("m-Q4_K_M.gguf",)


def test_a_file_is_found_in_another_case() -> None:
    assert pick(["m-MXFP4.gguf", "x.gguf"], "m-mxfp4.gguf", "r") == ("m-MXFP4.gguf",)
    assert pick(["m-a.gguf", "m-A.gguf"], "m-A.gguf", "r") == ("m-A.gguf",)
    with pytest.raises(ModelNotFound):
        pick(["m-a.gguf", "M-A.gguf"], "m-A.gguf", "r")


def test_what_is_not_there_names_what_is() -> None:
    with pytest.raises(ModelNotFound, match="no file for q6_k") as caught:
        pick([f"m-Q{i}_0.gguf" for i in range(14)], "q6_k", "r")
    assert "m-Q11_0.gguf and 2 more" in caught.value.hint
    with pytest.raises(ModelNotFound, match="nothing to run") as caught:
        pick(["model.safetensors"], None, "r")
    assert "another repository" in caught.value.hint


# --- the shipped catalogue ---


SHIPPED = catalog.load()


def test_the_catalogue_is_big_and_sound() -> None:
    entries = tomllib.loads(catalog.shipped_file().read_text(encoding="utf-8"))["model"]
    assert len(entries) == len({entry["name"] for entry in entries}) == len(SHIPPED) >= 50
    assert len({(entry.repo, file.file) for entry in SHIPPED.values() for file in entry.files}) == sum(
        len(entry.files) for entry in SHIPPED.values()
    )


@pytest.mark.parametrize("entry", SHIPPED.values(), ids=SHIPPED.keys())
def test_an_entry_means_what_it_says(entry: Entry) -> None:
    """Its name parses to it; each quantisation is what the file's name says; the sums are plausible."""
    assert parse_name(entry.name) == CatalogRef(entry.name)
    assert isinstance(parse_name(entry.repo), HubRef)
    for file in entry.files:
        assert entry.wanted(file.quant.upper()) == file.file
        assert match_quant([file.file], file.quant) == [file.file]
    usual = entry.files[0]
    assert entry.wanted(None) == usual.file
    assert entry.wanted("q3_k_s") == "q3_k_s"
    if entry.memory_gib is not None:
        assert entry.memory_class is not None
        if usual.gib is not None:
            assert usual.gib + 1 < entry.memory_gib < usual.gib + 5
    if entry.parameters and usual.gib:
        assert 2.2 < usual.gib * 8 * GIB / entry.parameters / 1e9 < 10, "bits a parameter"
    assert entry.active is None or entry.active < (entry.parameters or 0)
    draft = SHIPPED[entry.draft] if entry.draft else None
    if draft:
        assert "draft" in draft.good_for
        assert (draft.parameters or 0) < (entry.parameters or 0) / 2


def test_the_best_entry_fits_and_grows_with_the_memory() -> None:
    ranks = []
    for gib in [0, 1, 1.3, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 1000]:
        best = catalog.best_entry(SHIPPED, int(gib * GIB))
        assert best is None or (best.memory_gib or 0) <= gib
        ranks.append(best.suggest if best else 0)
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
    assert ranks[-1] == max(entry.suggest for entry in SHIPPED.values())
    assert all(
        entry.memory_gib and {"chat"} <= set(entry.good_for) for entry in SHIPPED.values() if entry.suggest
    )


def test_without_a_gpu_a_sparse_model_is_preferred() -> None:
    dense, sparse = catalog.best_entry(SHIPPED, 24 * GIB), catalog.best_entry(SHIPPED, 24 * GIB, max_active=4)
    assert dense
    assert (dense.active or dense.parameters or 0) > 4
    assert sparse
    assert (sparse.active or sparse.parameters or 99) <= 4


def test_an_unranked_entry_is_never_suggested() -> None:
    entry = Entry("a", "o/r", (CatalogFile("q8_0", "a.gguf"),), memory_gib=1.0)
    assert catalog.best_entry({"a": entry}, 2 * GIB) is None


def test_memory_classes() -> None:
    def size(gib: float | None) -> int | None:
        return Entry("a", "o/r", (), memory_gib=gib).memory_class

    assert [size(gib) for gib in (None, 1.3, 1.88, 1.89, 22.56, 22.57, 121)] == [None, 2, 2, 4, 24, 32, None]


def test_an_unknown_name_gets_its_neighbours() -> None:
    assert catalog.find(SHIPPED, CatalogRef("qwen3-8b", "q6_k")).repo == "unsloth/Qwen3-8B-GGUF"
    with pytest.raises(ModelNotFound, match="qwen3-8bb") as caught:
        catalog.find(SHIPPED, CatalogRef("qwen3-8bb"))
    assert "did you mean qwen3-8b" in caught.value.hint
    with pytest.raises(ModelNotFound) as caught:
        catalog.find(SHIPPED, CatalogRef("zzz"))
    assert "models list" in caught.value.hint


def test_the_wheel_carries_the_catalogue() -> None:
    root = Path(__file__).parents[1]
    built = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["force-include"] == {"models.toml": "localspec/models.toml"}
    assert catalog.shipped_file() == root / "models.toml"


# --- a file of one's own ---


MINE = """\
# my models
[[model]]
name = "mine"
repo = "me/mine-GGUF"
files = [{ quant = "q8_0", file = "mine-Q8_0.gguf" }]
draft = "qwen3-0.6b"

[[model]]
name = "qwen3-8b"
repo = "me/other-GGUF"
files = [
  { quant = "q4_0", file = "a-Q4_0.gguf", gib = 4 },
  { quant = "q8_0", file = "sub/a-Q8_0.gguf", gib = 8.5 },
]
heads = [
  { kind = "mtp", repo = "me/heads", file = "mtp-a.gguf" },
]
good_for = ["chat"]
"""


@pytest.fixture
def mine() -> Path:
    path = config.catalog_file()
    path.parent.mkdir(parents=True)
    path.write_text(MINE, encoding="utf-8")
    return path


def test_own_entries_come_on_top_and_replace_whole_ones(mine: Path) -> None:
    own = catalog.load()
    assert set(own) == {*SHIPPED, "mine"}
    assert own["mine"] == Entry(
        "mine", "me/mine-GGUF", (CatalogFile("q8_0", "mine-Q8_0.gguf"),), draft="qwen3-0.6b"
    )
    replaced = own["qwen3-8b"]
    assert replaced.repo == "me/other-GGUF"
    assert [file.gib for file in replaced.files] == [4, 8.5]
    assert (replaced.licence, replaced.draft, replaced.memory_gib) == ("", None, None)
    assert replaced.heads == (catalog.Head("mtp", "me/heads", "mtp-a.gguf"),)
    assert own["qwen3-14b"] == SHIPPED["qwen3-14b"]


WRONG = [
    ("name =", 'name = "mine"\nnmae = "x"\n#', 4, "unknown key 'nmae'"),
    ("[[model]]", "colour = 1\n[[model]]", 2, "unknown key 'colour'"),
    ("gib = 4 }", 'gib = "4" }', 12, "gib = '4' is not a number"),
    ("gib = 8.5 }", "gib = -1 }", 13, "gib = -1 is not a number"),
    ("gib = 8.5 }", "gib = true }", 13, "gib = True is not"),
    ("gib = 8.5 }", "gib = inf }", 13, "gib = inf is not"),
    ("gib = 8.5 }", "size = 1 }", 13, "unknown key 'size'"),
    ('quant = "q8_0", file = "sub', 'file = "sub', 13, "there is no 'quant'"),
    ('quant = "q8_0", file = "sub', 'quant = "q4_0", file = "sub', 13, "'q4_0' stands here a second time"),
    ("sub/a-Q8_0.gguf", "a-Q4_0.gguf", 13, "'a-Q4_0.gguf' stands here a second time"),
    ("sub/a-Q8_0.gguf", "../a-Q8_0.gguf", 13, "plain relative path"),
    ("sub/a-Q8_0.gguf", "/a-Q8_0.gguf", 13, "plain relative path"),
    ("sub/a-Q8_0.gguf", "sub//a.gguf", 13, "plain relative path"),
    ("sub/a-Q8_0.gguf", "~/a-Q8_0.gguf", 13, "plain relative path"),
    ("sub/a-Q8_0.gguf", "sub\\\\a-Q8_0.gguf", 13, "character '\\\\\\\\'"),
    ("sub/a-Q8_0.gguf", "C:/a-Q8_0.gguf", 13, "character ':'"),
    ("sub/a-Q8_0.gguf", "file://a-Q8_0.gguf", 13, "character ':'"),
    ("sub/a-Q8_0.gguf", "sub/\\u001ba.gguf", 13, r"character '\\x1b'"),
    ("sub/a-Q8_0.gguf", "sub/a.bin", 13, "not the name of a .gguf"),
    ('"me/heads"', '"me/../heads"', 16, "is not org/repo"),
    ('"me/heads"', '"/etc/heads"', 16, "is not org/repo"),
    ('"mtp"', '"magic"', 16, "is not one of mtp"),
    ("mtp-a.gguf", "../mtp-a.gguf", 16, "plain relative path"),
    ('["chat"]', '["chat", "poetry"]', 18, "is not a list of chat"),
    ('["chat"]', '"chat"', 18, "is not a list of chat"),
    ('good_for = ["chat"]', 'gated = "no"', 18, "is not true or false"),
    ('good_for = ["chat"]', "suggest = 1.5", 18, "is not a whole number"),
    ('good_for = ["chat"]', 'licence = "a\\nb"', 18, "is not a text on one line"),
    ('good_for = ["chat"]', 'draft = "qwen3-9999b"', 18, "no other model of the catalogue"),
    ('draft = "qwen3-0.6b"', 'draft = "mine"', 6, "no other model of the catalogue"),
    ('name = "qwen3-8b"', 'name = "mine"', 9, "'mine' stands here a second time"),
    ('name = "qwen3-8b"', 'name = "Qwen3 8B"', 9, "is not a name of lower-case"),
    ('name = "qwen3-8b"', 'name = "../x"', 9, "is not a name of lower-case"),
    ('repo = "me/mine-GGUF"', 'repo = "https://example.org/me/mine"', 4, "is not org/repo"),
    ('repo = "me/mine-GGUF"\n', "", 3, "there is no 'repo'"),
    ('[{ quant = "q8_0", file = "mine-Q8_0.gguf" }]', "[]", 5, "is not a list of tables"),
    ('[{ quant = "q8_0", file = "mine-Q8_0.gguf" }]', '["mine.gguf"]', 5, "is not a list of tables"),
    ('name = "mine"', 'name = "mine"\nname = "mine"', 4, "Cannot overwrite a value"),
    ('name = "mine"', "name = mine", 3, "Invalid value"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), WRONG)
def test_a_mistake_names_the_file_and_the_line(
    mine: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in MINE
    mine.write_text(MINE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        catalog.load()
    said = caught.value.message
    assert str(mine) in said
    assert message.replace("\\\\", "\\") in said
    assert f"line {line}:" in said or f"line {line}," in said, said


def test_a_single_table_and_bad_bytes_are_said(mine: Path) -> None:
    mine.write_text(MINE[: MINE.index("[[model]]", 20)].replace("[[model]]", "[model]"))
    with pytest.raises(UsageError, match=r"line 2: model = .* is not a list of tables"):
        catalog.load()
    mine.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot read"):
        catalog.load()
    mine.write_text("")
    assert catalog.load() == SHIPPED


def test_a_line_is_found_past_comments_and_odd_spelling(mine: Path) -> None:
    mine.write_text(
        '[[model]]\n# repo = "x/y"\n"name"="a"\nfiles=[ {quant="q8_0",file="a.gguf"}\n ]\n\n  repo = 3\n'
    )
    with pytest.raises(UsageError, match="line 7: repo = 3"):
        catalog.load()


# --- our folders ---


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.models_folder() == tmp_path / "home" / "models"
    assert config.catalog_file() == tmp_path / "home" / "models.toml"
    monkeypatch.delenv("LOCALSPEC_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert config.models_folder() == tmp_path / "data" / "localspec" / "models"
    assert config.catalog_file() == tmp_path / "config" / "localspec" / "models.toml"
    assert config.config_file() == tmp_path / "config" / "localspec" / "config.toml"
