"""Nothing that a model, a file or a name contains drives the terminal: raw bytes of whole runs are checked.

Every escape sequence on a terminal must be one of ours; into a pipe an answer goes as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
import tiny
from chats import COMMAND, ENV, ask, begun, chat, leave, saying, shown
from screen import Screen

ATTACKS = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "title": "\x1b]0;evil\x07",
    "link": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "csi": "\x1b[2J\x1b[31m\x1b[1;1H",
    "report": "\x1b[6n\x1b[c",
    "dcs": "\x1bP$q q\x1b\\\x1b_x\x1b\\",
    "c1": "\x9b31m\x9d0;evil\x9c\x90",
    "bell": "a\x07b\x08\x08c\rd\x0be\x0cf\x7f",
    "bidi": "\u202egpj.exe\u202c\u2066x\u2069\u200f",
    "hidden": "a\u200bb\ufeffc\u2028d\u2029e\U000e0041",
    "split": "\x1b\x1b[\x1b]5",
}
CORPUS = " ".join(ATTACKS.values())
NAME = "evil\x1b]0;title\x07\x9b31m\u202etxt.gguf"
_OURS = re.compile(
    r"\x1b\[[\d;]*m"  # colours and the like
    r"|\x1b\[\d*[ABCDHJK]"  # the cursor moved, and what is behind it erased
    r"|\x1b\[\?(1|7|12|25|2004)[hl]"  # modes: keys, wrapping, the cursor's look, pastes
    r"|\x1b[78DM]"  # the cursor kept
)
_CONTROLS = re.compile(
    r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\u2028]"
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def check(raw: str) -> None:
    """Nothing in what a terminal was sent is a control but our own."""
    rest = _OURS.sub("", raw).replace("\t", "")
    found = _CONTROLS.search(rest)
    assert found is None, rest[max(0, found.start() - 60) : found.end() + 60]


def on_terminal(*command: str | Path, columns: int = 80) -> str:
    """The screen of `localspec COMMAND`, whose bytes are checked."""
    with Screen([*COMMAND, *map(str, command)], env=ENV, columns=columns) as screen:
        screen.exit_status()
        check(screen.raw)
        return shown(screen)


def test_the_check_finds_every_attack() -> None:
    for text in ATTACKS.values():
        with pytest.raises(AssertionError):
            check(f"harmless {text}")


@pytest.mark.parametrize(
    "options", [[], ["--plain"], pytest.param(["--show-drafts"], marks=pytest.mark.slow)]
)
def test_an_answer(model: Path, tmp_path: Path, options: list[str]) -> None:
    text = "\n\n".join(f"{name}: {attack} END" for name, attack in ATTACKS.items())
    with chat("-m", model, *saying(tmp_path, text), *options, lines=60) as screen:
        ask(screen, "hello")
        leave(screen)
        check(screen.raw)
        seen = shown(screen)
    places = [seen.find(f"{name}: ") for name in ATTACKS]
    assert places == sorted(places)
    assert places[0] > 0
    assert seen.count("END") == len(ATTACKS)


def test_entities_and_links_in_markdown(model: Path, tmp_path: Path) -> None:
    text = "&#27;]0;evil&#7; &#x9b;31m [x](http://a/%1b]0;evil) ![y](z&#27;[2J) <b\x1b[31m>"
    text += "\n\n```\x1b]0;t\x07\n\x1b[2J\n```"
    with chat("-m", model, *saying(tmp_path, text)) as screen:
        ask(screen, "hello")
        leave(screen)
        check(screen.raw)
        assert "evil" in screen.text


@pytest.mark.slow
def test_an_answer_on_a_dumb_terminal(model: Path, tmp_path: Path) -> None:
    with begun("-m", model, *saying(tmp_path, CORPUS), "hello", env={"TERM": "dumb"}) as screen:
        assert screen.exit_status() == 0
        check(screen.raw)
        assert "\x1b" not in screen.raw


def test_an_answer_in_a_pipe_is_as_it_is(model: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "chat", "-q", "-t", "1", "-m", str(model), *saying(tmp_path, CORPUS), "hello"]
    done = subprocess.run(command, stdin=DEVNULL, capture_output=True, check=True)
    assert done.stdout == f"{CORPUS}\n".encode()


@pytest.mark.slow
def test_thoughts(model: Path, tmp_path: Path) -> None:
    says = saying(tmp_path, f"<think>{CORPUS}</think>Yes.")
    for options in (["--think"], ["--think", "--plain"]):
        with chat("-m", model, *says, *options) as screen:
            ask(screen, "hello")
            leave(screen)
            check(screen.raw)
            assert "Yes." in screen.text


def test_names_of_files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_text(CORPUS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"a{NAME}").write_text("")
    (tmp_path / "folder" / "ab.txt").write_text("")
    (tmp_path / "folder" / "ac.txt").write_text("")
    evil = shutil.copy(model, tmp_path / "evil\u202etxt\u200b\u2066.gguf")
    with chat("-m", evil, *saying(tmp_path, "Yes."), "-f", NAME, columns=120, lines=60) as screen:
        ask(screen, "what is it?")
        ask(screen, "/file evil*")
        for typed in ("/file folder/a", "see @folder/a"):
            screen.send(f"{typed}\t\t")
            screen.wait("ac.txt")
            screen.send("\x03")
            screen.wait(lambda: ">" in screen.rows and "folder/a" not in screen.text)
        screen.paste(f"/file {NAME}")
        ask(screen, "")
        screen.paste(f"/save {NAME}")
        ask(screen, "")
        screen.paste(f"/model {tmp_path}/no{NAME}")
        ask(screen, "")
        ask(screen, "/model")
        leave(screen)
        check(screen.raw)
        assert "Yes." in shown(screen)


@pytest.mark.slow
def test_names_on_the_command_line(model: Path, tmp_path: Path) -> None:
    evil = shutil.copy(model, tmp_path / "evil\u202etxt\u200b\u2066.gguf")
    nowhere = (["-f", f"no{NAME}"], ["-m", f"./no{NAME}"], ["--grammar", f"no{NAME}"], ["--batch", NAME])
    for options in nowhere:
        assert on_terminal("chat", *options, "hi")
    assert on_terminal("models", "info", evil)


def test_what_is_typed_and_kept(model: Path, tmp_path: Path) -> None:
    """Pastes, the history file, system messages, sessions: shown at the prompt and by other commands."""
    history = tmp_path / "home/state/history"
    history.parent.mkdir(parents=True)
    history.write_text(json.dumps(f"typed {CORPUS}") + "\n" + f"raw {CORPUS}\n")
    options = ("-m", str(model), *saying(tmp_path, f"Yes {CORPUS}."), "--session", "kept")
    with chat(*options, "--system", f"Be {CORPUS}".replace("\x00", "")) as screen:
        screen.send("\x1b[A")
        screen.wait("typed")
        screen.send("\x03")
        screen.wait(lambda: "typed" not in screen.text)
        screen.paste(f"title {CORPUS}")
        screen.send("\x05 end")
        ask(screen, "")
        for typed in ("/undo", "/system", "/sessions"):
            ask(screen, typed)
        screen.paste(f"again {CORPUS}")
        ask(screen, "")
        for typed in ("/sessions", "/retry", "/stats"):
            ask(screen, typed)
        screen.paste(f"/{CORPUS}")
        ask(screen, "")
        leave(screen)
        check(screen.raw)


@pytest.mark.slow
def test_what_is_kept(model: Path, tmp_path: Path) -> None:
    options = ("-m", str(model), *saying(tmp_path, f"Yes {CORPUS}."), "--session", "kept")
    with chat(*options, "--system", CORPUS) as screen:
        screen.paste(f"title {CORPUS}")
        ask(screen, "")
        leave(screen)
    path = tmp_path / "home/sessions/kept.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"role": "user", "content": f"open {CORPUS}", "time": 1, "n": 3}) + "\n")
    with chat(*options) as screen:
        assert "not answered yet: open" in screen.text
        leave(screen)
        check(screen.raw)
    for command in ("list", "show kept", "export kept"):
        assert on_terminal("sessions", *command.split())
    assert on_terminal("sessions", "rm", NAME)


@pytest.mark.slow
def test_a_forged_session(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home/sessions"
    folder.mkdir(parents=True)
    header: dict[str, Any] = {
        "localspec": 1,
        "model": NAME,
        "fingerprint": CORPUS,
        "system": CORPUS,
        "created": 1.0,
    }
    said = {"role": "user", "content": CORPUS, "time": 1.0, "n": 1}
    for name, lines in {
        "whole": [header | {"title": CORPUS}, said],
        "torn": [header, {"role": CORPUS}],
    }.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with chat("-m", model, *saying(tmp_path, "Yes.")) as screen:
        for typed in ("/sessions", "/sessions torn", "/sessions whole", "/retry"):
            ask(screen, typed)
        leave(screen)
        check(screen.raw)
        assert "Yes." in screen.text
    for command in (["list"], ["show", "whole"], ["show", "torn"]):
        assert on_terminal("sessions", *command)


def write_model(path: Path, template: str, name: str = "tiny") -> Path:
    def named(arch: str, keys: dict[str, Any]) -> dict[str, Any]:
        return keys | {"general.name": name}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "CHATML", template)
        save = tiny._save
        patch.setattr(tiny, "_save", lambda to, arch, keys, *rest: save(to, arch, named(arch, keys), *rest))
        return tiny.write_llama(path)


def test_metadata_of_a_model(tmp_path: Path) -> None:
    evil = write_model(tmp_path / "evil.gguf", f"{CORPUS}{{{{ raise_exception('no {CORPUS}') }}}}", CORPUS)
    assert on_terminal("models", "info", evil)
    with chat("-m", evil, *saying(tmp_path, "Yes."), "-v") as screen:
        ask(screen, "hello")
        leave(screen)
        check(screen.raw)
        assert "chat template fails" in shown(screen)


TEMPLATES = {
    "class": "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "globals": "{{ lipsum.__globals__['os'].system('touch /tmp/owned') }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "attr": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "long": "{{ 'x' * 10**9 }}",
    "just": "{{ 'x'.ljust(10**8) }}",
    "deep": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "large": "x" * (1 << 20),
    "nothing": "{% if false %}",
    "broken": "{{ nope.nope.nope }}",
}


@pytest.mark.parametrize(
    "kind", ["class", *(pytest.param(kind, marks=pytest.mark.slow) for kind in TEMPLATES if kind != "class")]
)
def test_a_hostile_template(kind: str, tmp_path: Path) -> None:
    evil = write_model(tmp_path / "evil.gguf", TEMPLATES[kind])
    with chat("-m", evil, *saying(tmp_path, "Yes."), "--session", "kept", columns=120) as screen:
        for question in ("one", "two"):
            ask(screen, question)
        leave(screen)
        check(screen.raw)
        seen = shown(screen)
    assert seen.count("Yes.") == 2
    assert len(re.findall(r"chat template fails \(.*\): using ChatML", seen.replace("\n", " "))) == 1
    with chat("-m", evil, *saying(tmp_path, "Yes."), "-c", columns=120) as screen:
        ask(screen, "three")
        leave(screen)
        assert shown(screen).count("using ChatML") == 1
