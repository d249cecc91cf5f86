"""`localspec chat` for scripts: what goes in, what comes out, what is kept, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
import tiny
from screen import Screen

from localspec.chat import state
from localspec.chat.prompt import quote
from localspec.cli import main

ROOT = Path(__file__).parents[1]
CHAT = (sys.executable, "-m", "localspec", "chat")
LONG = "a long story about the sea. " * 12
EXACTLY = ("--flash-attn", "off", "--kv-type", "f32")
"""So that passes of any width compute the same."""
Events = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def lines(self) -> Events:
        assert self.out == "" or self.out.endswith("\n")
        return [json.loads(line) for line in self.out.split("\n")[:-1]]

    def refused(self, code: int, *words: str) -> None:
        """Nothing but one line on stderr."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("error: ")
        for word in words:
            assert word in self.err


Run = Callable[..., Told]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LOCALSPEC_THREADS", "1")
    monkeypatch.setenv("LOCALSPEC_MAX_TOKENS", "12")
    monkeypatch.setenv("LOCALSPEC_CTX", "1024")
    monkeypatch.setenv("LOCALSPEC_DRAFT", "none")  # nothing is measured then, which takes longest


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that does not end its answers."""
    return tiny.write_llama(tmp_path_factory.mktemp("endless") / "endless.gguf", end_bias=-30.0)


@pytest.fixture
def localspec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Run `localspec ARGS` in this process, with `stdin` if any was sent."""
    sent = tmp_path / "stdin"

    def run(*args: str | Path, stdin: bytes | None = None) -> Told:
        sent.write_bytes(stdin or b"")
        with monkeypatch.context() as patch, open(os.devnull if stdin is None else sent) as stream:
            patch.setattr(sys, "stdin", stream)
            patch.setattr(sys, "argv", ["localspec", *map(str, args)])
            with pytest.raises(SystemExit) as left:
                main()
        seen = capsys.readouterr()
        return Told(int(left.value.code or 0), seen.out, seen.err)

    yield run
    sent.unlink(missing_ok=True)


@pytest.fixture
def chat(localspec: Run, endless: Path) -> Run:
    """Run `localspec chat -m MODEL --seed 1 ARGS`."""

    def run(*args: str | Path, stdin: bytes | None = None) -> Told:
        return localspec("chat", "-m", endless, "--seed", "1", *args, stdin=stdin)

    return run


# What is asked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files to ask about."""
    path = tmp_path / "work"
    (path / "sub").mkdir(parents=True)
    for name in ("a.py", "b.py", "sub/c.py", "ein Name.txt"):
        (path / name).write_text(f"this is {name}\n")
    (path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (path / "latin").write_bytes(b"caf\xe9")
    (path / "long.txt").write_text("a word, " * 1500)
    monkeypatch.chdir(path)
    return path


def block(name: str) -> str:
    return quote(f"this is {name}\n", name)


ASKED: dict[str, tuple[list[str], str | None, str]] = {
    "a question": (["what?"], None, "what?"),
    "stdin": ([], "what?\n", "what?\n"),
    "both": (["what?"], "this is it\n", quote("this is it\n", "stdin") + "\nwhat?"),
    "a file": (["-f", "a.py", "what?"], None, block("a.py") + "\nwhat?"),
    "files": (["-f", "b.py", "--file", "a.py", "what?"], None,
              block("b.py") + "\n" + block("a.py") + "\nwhat?"),
    "a file twice": (["-f", "a.py", "-f", "./a.py", "what?"], None, block("a.py") + "\nwhat?"),
    "a pattern": (["-f", "*.py", "what?"], None, block("a.py") + "\n" + block("b.py") + "\nwhat?"),
    "a pattern through folders": (["-f", "**/c.py", "what?"], None, block("sub/c.py") + "\nwhat?"),
    "stdin after files": (["-f", "a.py", "what?"], "hm\n",
                          block("a.py") + "\n" + quote("hm\n", "stdin") + "\nwhat?"),
    "stdin in its place": (["-f", "-", "-f", "a.py", "what?"], "hm\n",
                           quote("hm\n", "stdin") + "\n" + block("a.py") + "\nwhat?"),
    "stdin alone, by name": (["-f", "-"], "what?", "what?"),
    "a file, asked on stdin": (["-f", "a.py"], "what?", block("a.py") + "\nwhat?"),
    "a mention": (["what is @a.py?"], None, block("a.py") + "\nwhat is @a.py?"),
    "a mention with a space": (['see @"ein Name.txt"'], None,
                               block("ein Name.txt") + '\nsee @"ein Name.txt"'),
    "a mention of nothing": (["ask @nobody"], None, "ask @nobody"),
    "a mention in data": (["what?"], "@a.py\n", quote("@a.py\n", "stdin") + "\nwhat?"),
    "a mention on stdin": ([], "what is @a.py", "what is @a.py"),
}  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("way", ASKED)
def test_what_the_model_is_asked(way: str, chat: Run, localspec: Run) -> None:
    args, sent, prompt = ASKED[way]
    told = chat("--session", "one", "-n", "1", *args, stdin=sent.encode() if sent else None)
    assert told.code == 0, told.err
    exported = json.loads(localspec("sessions", "export", "one", "--format", "json").out)
    assert exported["messages"][0] == {"role": "user", "content": prompt}


REFUSED: dict[str, tuple[list[str], bytes | None, str]] = {
    "an empty question": ([""], None, "the question is empty"),
    "empty stdin": ([], b"", "stdin is empty"),
    "empty stdin beside a question": (["what?"], b"\n", "stdin is empty"),
    "NUL on stdin": ([], b"a\0b", "stdin has NUL bytes"),
    "no file": (["-f", "no.py", "what?"], None, "there is no file no.py"),
    "no match": (["-f", "*.rs", "what?"], None, "no file matches *.rs"),
    "a folder": (["-f", "sub", "what?"], None, "sub is no file but a folder; name its files"),
    "a binary file": (["-f", "binary", "what?"], None, "binary is no UTF-8 text (10 bytes"),
    "a file in Latin-1": (["-f", "latin", "what?"], None, "latin is no UTF-8 text"),
    "a binary mention": (["what is @binary"], None, "binary is no UTF-8 text"),
    "a device": (["-f", "/dev/zero", "what?"], None, "/dev/zero is no file but a device"),
    "a long file": (["-f", "long.txt", "what?"], None, "tokens, there is room for"),
    "long stdin": ([], b"a word, " * 1500, "the context 1024; give --ctx "),
    "long data": (["what?"], b"a word, " * 1500, "stdin has 9,016 tokens, there is room for 896"),
    "no stdin": (["-f", "-", "what?"], None, "--file - has nothing to read"),
    "nothing for JSON": (["--json"], None, "--json needs a question"),
    "nothing for a stream": (["--json-stream"], None, "--json-stream needs a question"),
    "answers to nowhere": (["--out", "x", "what?"], None, "--out is for the answers of --batch"),
    "a session's name": (["--session", "../x", "what?"], None, "cannot name a session"),
    "no session": (["--continue", "what?"], None, "there is no session to go on with"),
    "no schema": (["--schema", "no.json", "what?"], None, "no.json cannot be read"),
    "no JSON": (["--schema", "a.py", "what?"], None, "error: "),
    "no grammar": (["--grammar", "a.py", "what?"], None, "a.py is no valid grammar"),
    "a schema and a grammar": (["--schema", "a", "--grammar", "b", "what?"], None, "exclude each other"),
    "two kinds of JSON": (["--json", "--json-stream", "what?"], None, "exclude each other"),
    "a question for a batch": (["--batch", "a.py", "what?"], None, "--batch takes its prompts from the file"),
    "a file for a batch": (["--batch", "a.py", "-f", "a.py"], None, "--file is for one conversation"),
    "a session for a batch": (["--batch", "a.py", "-c"], None, "--continue is for one conversation"),
    "no batch": (["--batch", "no.jsonl"], None, "cannot read no.jsonl"),
    "no prompts": (["--batch", "a.py"], None, "line 1 is not JSON"),
    "nothing sent to a batch": (["--batch", "-"], None, "--batch - has nothing to read"),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("way", REFUSED)
def test_what_is_refused(way: str, chat: Run) -> None:
    args, sent, words = REFUSED[way]
    chat(*args, stdin=sent).refused(2, words)


@pytest.mark.parametrize("flag", ["--schema", "--grammar"])
def test_a_bad_grammar_is_told_before_any_model_is_looked_at(flag: str, localspec: Run, folder: Path) -> None:
    (folder / "bad").write_text('{"type": "object", "patternProperties": {"a": {}}}')
    localspec("chat", "-m", "no-such.gguf", flag, "bad", "what?").refused(2)
    localspec("chat", "-m", "no-such.gguf", "what?").refused(3, "no such model file")


# What comes out


def test_text_json_and_stream_say_the_same(chat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DRAFT", "auto")
    text, as_json, stream, quiet = (
        chat(*flags, "what?") for flags in ([], ["--json"], ["--json-stream"], ["-q"])
    )
    answer, events = as_json.answer, stream.lines
    assert text.out == quiet.out == answer["text"] + "\n"
    assert (quiet.err, text.err.count("\n")) == ("", 1)
    assert [event["type"] for event in events] == ["text"] * (len(events) - 1) + ["end"]
    assert len(events) > 5
    assert all(event.keys() == {"type", "text"} for event in events[:-1])
    assert "".join(event["text"] for event in events[:-1]) == answer["text"] == events[-1]["text"]
    for one in (answer, events[-1]):
        shown = one.keys() - {"type"}
        assert shown == {"text", "thinking", "finish_reason", "timings", "stats", "seed", "model", "context"}
        assert (one["seed"], one["finish_reason"], one["thinking"]) == (1, "length", "")


def test_thoughts_are_apart(localspec: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "CHATML", tiny.CHATML + "<think>")
    path = tiny.write_llama(tmp_path / "thinker.gguf", end_bias=-30.0)
    command = ("chat", "-m", path, "--seed", "1", "what?")
    answer, events = localspec(*command, "--json").answer, localspec(*command, "--json-stream").lines
    assert answer["text"] == ""
    assert len(answer["thinking"]) > 5
    assert [event["type"] for event in events] == ["thinking"] * (len(events) - 1) + ["end"]
    assert "".join(event["text"] for event in events[:-1]) == answer["thinking"]
    assert localspec(*command).out.strip() == ""
    plain = localspec(*command, "--no-think", "--json").answer
    assert plain["thinking"] == ""
    assert len(plain["text"]) > 5


def test_a_reader_of_the_stream_that_leaves(endless: Path) -> None:
    child = subprocess.Popen(
        [*CHAT, "--json-stream", "-q", "--draft", "auto", "-m", endless, "--ctx", "4096", "-n", "4000", "hi"],
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert child.stdout
    assert child.stderr
    assert json.loads(child.stdout.readline())["type"] == "text"
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(20) == 141


def test_ctrl_c_ends_the_stream_as_it_should(endless: Path) -> None:
    child = subprocess.Popen(
        [*CHAT, "--json-stream", "-m", endless, "--ctx", "16384", "-n", "16000", "hi"],
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stderr
    with child.stdout, child.stderr:
        events = [json.loads(child.stdout.readline())]
        child.send_signal(signal.SIGINT)
        events += map(json.loads, child.stdout)
        assert "Traceback" not in child.stderr.read()
    assert child.wait(20) == 130
    assert (events[-1]["type"], events[-1]["finish_reason"]) == ("end", "cancelled")
    assert "".join(event["text"] for event in events[:-1]) == events[-1]["text"]


# What is kept


def listed(localspec: Run) -> Events:
    told = localspec("sessions", "list", "--json")
    assert told.code == 0
    found: Events = json.loads(told.out)
    return found


def test_a_script_keeps_nothing_unless_it_says_so(chat: Run, localspec: Run, tmp_path: Path) -> None:
    chat("what?")
    chat("--json", "what?")
    chat("--session", "one", "--no-save", "what?")
    home = tmp_path / "home"
    assert [path for path in home.rglob("*") if path.name in ("sessions", "state", "history")] == []
    assert listed(localspec) == []
    chat("--session", "one", "what?")
    assert [found["name"] for found in listed(localspec)] == ["one"]
    chat("--session", "one", "--no-save", "what?")
    chat("-c", "--no-save", "what?")
    assert [found["messages"] for found in listed(localspec)] == [2]
    chat("-c", "what?")
    assert [found["messages"] for found in listed(localspec)] == [4]


@pytest.mark.parametrize("flags", [[], ["--no-save"]])
def test_on_a_terminal_it_is_kept_unless_it_must_not(flags: list[str], endless: Path, localspec: Run) -> None:
    with Screen([*CHAT, "-m", str(endless), *flags, "what?"]) as screen:
        assert screen.exit_status() == 0
    assert [found["title"] for found in listed(localspec)] == (["what?"] if not flags else [])


def test_sessions(chat: Run, localspec: Run) -> None:
    assert localspec("sessions", "list").out == "no sessions are kept\n"
    answer = chat("--session", "one", "--json", "--system", "Be brief.", "what?").answer["text"]
    chat("--session", "two", "hm?")
    names = [found["name"] for found in listed(localspec)]
    assert names == ["two", "one"]
    assert {"name", "when", "title", "messages", "model"} == listed(localspec)[0].keys()
    assert localspec("sessions", "list").out.splitlines()[1].split()[0] == "one"
    assert localspec("sessions", "show", "one").out == f"> what?\n\n{answer}\n"
    exported = json.loads(localspec("sessions", "export", "one", "--format", "json").out)
    assert (exported["system"], exported["messages"][1]["content"]) == ("Be brief.", answer)
    assert "## You\n\nwhat?\n" in localspec("sessions", "export", "one").out
    gone = localspec("sessions", "rm", "one")
    assert (gone.code, gone.err) == (0, "one is deleted\n")
    assert [found["name"] for found in listed(localspec)] == ["two"]


def test_sessions_alone_lists_them(chat: Run, localspec: Run) -> None:
    chat("--session", "one", "what?")
    assert localspec("sessions") == localspec("sessions", "list")
    assert "Commands:" in localspec("sessions", "-h").out


def test_models_alone_lists_them(localspec: Run) -> None:
    assert localspec("models") == localspec("models", "list")


def test_only_stdin_may_be_empty_on_purpose(localspec: Run) -> None:
    localspec("chat", " ").refused(2, "the question is empty; give some text\n")


@pytest.mark.parametrize("command", ["show", "export", "rm"])
def test_sessions_that_are_not_there(command: str, localspec: Run) -> None:
    localspec("sessions", command, "no").refused(2, "there is no session no; localspec sessions lists them")
    localspec("sessions", command, "../no").refused(2, "cannot name a session")


def test_a_format_that_is_none(chat: Run, localspec: Run) -> None:
    chat("--session", "one", "what?")
    localspec("sessions", "export", "one", "--format", "pdf").refused(2, "give md, json, txt")


# Going on


def test_going_on_does_not_read_again(chat: Run) -> None:
    first = chat("--session", "one", "--json", LONG).answer
    used = first["context"]["used"]
    for flags in (["-c"], ["--session", "one"]):
        told = chat(*flags, "-v", "--json", "and now?")
        timings = told.answer["timings"]
        assert timings["tokens_reused"] in (used - 1, used)
        assert timings["tokens_prefill"] < 40
        assert "read again" not in told.err
        used = told.answer["context"]["used"]


def test_going_on_gives_the_text_that_staying_would_have(chat: Run) -> None:
    """Whether its cache was kept or is read again."""
    texts = []
    for name in ("one", "two"):
        chat("--session", name, *EXACTLY, LONG)
        if name == "two":
            (state.folder() / "two.caches").unlink()
        texts.append(chat("--session", name, *EXACTLY, "--json", "and now?").answer)
    assert texts[0]["timings"]["tokens_reused"] > 250 > texts[1]["timings"]["tokens_reused"]
    assert texts[0]["text"] == texts[1]["text"]


def test_why_it_is_read_again_is_said_to_who_asks(chat: Run) -> None:
    chat("--session", "one", LONG)
    told = chat("--session", "one", "-v", "--ctx", "2048", "and now?")
    assert "the conversation is read again: the target was kept under another context size" in told.err
    (state.folder() / "one.caches").write_bytes(b"nonsense")
    told = chat("--session", "one", "-v", "and now?")
    assert "the conversation is read again: the state that was kept cannot be used" in told.err
    (state.folder() / "one.caches").unlink()
    assert "read again" not in chat("--session", "one", "and now?").err


def test_a_session_that_is_open_elsewhere(endless: Path, chat: Run) -> None:
    chat("--session", "one", "what?")
    with Screen([*CHAT, "-m", str(endless), "--session", "one"], columns=120) as screen:
        screen.wait(lambda: ">" in screen.rows)
        chat("--session", "one", "what?").refused(1, "session one is open in another localspec")
        screen.send("\x04")
        assert screen.exit_status() == 0
    assert chat("--session", "one", "what?").code == 0


def test_the_program_is_told_to_end(endless: Path, chat: Run, localspec: Run) -> None:
    """By what it is when the machine is switched off, or its terminal closed."""
    command = [*CHAT, "-m", str(endless), "--ctx", "16384", "-n", "16000", "--session", "one", "what?"]
    child = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True)
    assert child.stdout
    child.stdout.read(5)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (128 + signal.SIGTERM, "")
    assert [found["messages"] for found in listed(localspec)] == [2]
    assert chat("-c", "and now?").code == 0
    shown = localspec("sessions", "show", "one").out
    assert "> and now?" in shown
    assert "(stopped)" in shown  # what there was of the first answer


# Grammars

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"},
                   "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"],
}  # fmt: skip


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    return path


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "draft.gguf", end_bias=-30.0, noise=0.1)


def test_answers_fit_the_schema_whoever_guesses(chat: Run, schema: Path, draft: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "who?", "seed": {seed}}}\n' for seed in range(10)))
    texts: dict[str, list[str]] = {}
    for source in ("none", "ngram", f"{draft}", f"ngram,{draft}", "auto"):
        flags = [] if source in ("none", "auto") else ["--draft-len", "4"]
        command = ("--batch", prompts, "--schema", schema, "--draft", source, "-n", "300", *EXACTLY, *flags)
        answers = chat(*command).lines
        assert len(answers) == 10
        for answer in answers:
            assert answer["finish_reason"] == "stop"
            person = json.loads(answer["text"])
            assert set(person) == set(PERSON["properties"])
            assert isinstance(person["age"], int)
            assert set(person["tags"]) <= {"a", "b"}
        texts[source] = [answer["text"] for answer in answers]
        assert source in ("none", "auto") or sum(answer["stats"]["drafted"] for answer in answers) > 0
    assert len(set(map(tuple, texts.values()))) == 1
    assert len(set(texts["none"])) > 5
    one = chat("--json", "--seed", "4", "--schema", schema, "-n", "300", *EXACTLY, "who?").answer
    assert one["text"] == texts["none"][4]


def test_a_grammar_from_a_file(chat: Run, tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"\n')
    assert chat("--grammar", tmp_path / "g.gbnf", "really?").out in ("yes\n", "no\n")


def test_an_answer_that_the_budget_cut_is_called_incomplete(chat: Run, schema: Path) -> None:
    told = chat("--schema", schema, "-n", "5", "--json", "who?")
    assert told.answer["finish_reason"] == "length"
    assert told.err.endswith("· stopped at --max-tokens · incomplete: the grammar asks for more\n")
    assert "incomplete" not in chat("-n", "5", "who?").err


# Batches

PROMPTS: Events = [
    {"prompt": "what?", "seed": 5},
    {"prompt": "and this?", "max_tokens": 4, "id": "second"},
    {"prompt": LONG, "system": "Be long.", "seed": 6},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                  {"role": "user", "content": "c"}]},
    {"prompt": "what?", "seed": 5},
]  # fmt: skip


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def test_a_batch_answers_as_single_questions_would(chat: Run, prompts: Path) -> None:
    found = chat("--batch", prompts, "--system", "Be brief.", *EXACTLY).lines
    assert [(line["index"], line["id"]) for line in found] == [(0, 0), (1, "second"), (2, 2), (3, 3), (4, 4)]
    singles = [
        chat("--json", *EXACTLY, "--system", "Be brief.", "--seed", "5", "what?").answer,
        chat("--json", *EXACTLY, "--system", "Be brief.", "-n", "4", "and this?").answer,
        chat("--json", *EXACTLY, "--system", "Be long.", "--seed", "6", LONG).answer,
    ]
    assert [line["text"] for line in found[:3]] == [single["text"] for single in singles]
    assert [line["seed"] for line in found] == [5, 1, 6, 1, 5]
    assert found[0]["text"] == found[4]["text"]
    assert found[1]["stats"]["tokens"] == 4
    assert set(singles[0]) | {"index", "id", "digest"} == set(found[0])
    without = chat("--batch", prompts, *EXACTLY).lines
    same = [one["text"] == other["text"] for one, other in zip(found, without, strict=True)]
    assert same == [False, False, True, False, False], (
        "the system message reaches all but the one with its own"
    )


def test_a_batch_from_stdin_to_a_file(chat: Run, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    told = chat("--batch", "-", "--out", out, *EXACTLY, stdin=prompts.read_bytes())
    assert (told.code, told.out) == (0, "")
    first = out.read_bytes()
    assert len(first.splitlines()) == len(PROMPTS)
    assert chat("--batch", prompts, "--out", out, *EXACTLY).code == 0
    assert out.read_bytes() == first  # nothing was left to do
    chat("--batch", prompts, "--out", out, *EXACTLY, "--temp", "0").refused(2, "is no answer to prompt 1")


def test_one_prompt_that_fails(chat: Run, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("a", "x" * 3000, "b")))
    told = chat("--batch", path)
    assert told.code == 1
    assert ["text" in line for line in told.lines] == [True, False, True]
    assert "the context 1024" in told.lines[1]["error"]
    assert told.lines[1]["hint"].startswith("give --ctx ")
    assert told.lines[2]["text"] == chat("b", "--json").answer["text"]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"prompt": "number {i}?"}}\n' for i in range(6)))
    return path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_batch_goes_on_after_it_was_ended(
    number: signal.Signals, chat: Run, many: Path, endless: Path, tmp_path: Path
) -> None:
    flags = ("--batch", many, "-n", "300", "--draft", "auto", *EXACTLY)
    whole = chat(*flags).lines
    out = tmp_path / "out.jsonl"
    command = (*CHAT, "-m", endless, "--seed", "1", *flags, "--out", out)
    child = subprocess.Popen(list(map(str, command)), stdin=DEVNULL, stderr=PIPE, text=True)
    while not out.exists() or b"\n" not in out.read_bytes():
        assert child.poll() is None
    child.send_signal(number)
    _, err = child.communicate(timeout=20)
    assert child.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    done = out.read_bytes().count(b"\n")
    assert 0 < done < 6
    kept = out.read_bytes().rpartition(b"\n")[0]
    assert chat(*flags, "--out", out).code == 0
    assert out.read_bytes().startswith(kept)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["index"], line["text"]) for line in found] == [
        (line["index"], line["text"]) for line in whole
    ]


def test_a_batch_does_not_wait_for_stdin(endless: Path, many: Path) -> None:
    child = subprocess.Popen([*CHAT, "-q", "-m", endless, "--batch", many], stdin=PIPE, stdout=PIPE)
    assert child.stdout  # nobody ever writes to stdin, nor closes it
    with child.stdout as stream:
        assert len(stream.read().splitlines()) == 6
    assert child.wait(20) == 0
    assert child.stdin
    child.stdin.close()
