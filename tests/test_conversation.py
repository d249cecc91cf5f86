"""A conversation between its model and its session: nothing that goes wrong leaves either unusable."""

from __future__ import annotations

import io
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny

from localspec.chat import session, state, window
from localspec.chat.conversation import ContextFull, Conversation
from localspec.chat.opening import Opener
from localspec.chat.prompt import Message
from localspec.chat.views import Show
from localspec.config import Settings
from localspec.drafters import LazyDrafter
from localspec.engine.schedule import Scheduler
from localspec.errors import LocalspecError, ModelNotFound, UsageError
from localspec.llama.schema import gbnf_of
from localspec.ui.terminal import Terminal

SEED = 3
LONG = "a long story about the sea. " * 12


class Chat:
    """Opens conversations as the command does, in a home of its own. `said`: all of stderr."""

    def __init__(self, path: Path) -> None:
        self.path, self.said = path, io.StringIO()

    @contextmanager
    def __call__(
        self,
        name: str | None = None,
        *,
        go_on: bool = False,
        keep: bool = False,
        grammar: str | None = None,
        **changes: Any,
    ) -> Iterator[Conversation]:
        with self.opener(name, go_on=go_on, keep=keep, grammar=grammar, **changes) as opener:
            yield opener.conversation

    @contextmanager
    def opener(
        self,
        name: str | None = None,
        *,
        go_on: bool = False,
        keep: bool = False,
        grammar: str | None = None,
        **changes: Any,
    ) -> Iterator[Opener]:
        chosen: dict[str, Any] = {"threads": 1, "max_tokens": 20, "seed": SEED, "ctx": 1024, "draft": "none"}
        settings = Settings(**{"model": str(self.path), **chosen, **changes})
        terminal = Terminal(io.StringIO(), self.said, False, False, False, verbosity=1)
        opener = Opener(settings, terminal, Show(), grammar)
        with ExitStack() as stack:
            opener.open(stack, name, go_on=go_on, keep=keep)
            yield opener


@pytest.fixture
def chat(tiny_path: Path) -> Chat:
    return Chat(tiny_path)


def kept() -> list[Message]:
    """What the last session's file has."""
    with session.load() as found:
        return found.messages(10**6)


class Failing:
    """A view that breaks at the first piece of text."""

    def write(self, text: str, *, underlined: bool = False) -> None:
        raise ZeroDivisionError(text)

    def think(self, text: str) -> None: ...
    def update(self, status: str) -> None: ...
    def clear(self) -> None: ...


# What is kept


def test_the_file_has_what_was_said_whatever_was_done(chat: Chat) -> None:
    rng = random.Random(1)
    with chat("one", max_tokens=6) as talk:
        does: list[Callable[[], object]] = [
            lambda: talk.ask("what?"),
            lambda: talk.ask("and now?"),
            talk.undo,
            talk.compact,
            lambda: talk.set_system(f"Be number {rng.random()}."),
            talk.clear,
        ]
        for _ in range(60):
            with suppress(UsageError):  # nothing to take back, or to shorten
                rng.choices(does, (6, 6, 3, 1, 1, 0.5))[0]()
        said = list(talk.messages)
        assert said
    assert kept() == said


def test_no_save_reads_a_session_and_leaves_it_alone(chat: Chat) -> None:
    with chat("one") as talk:
        talk.ask("what?")
    before = session.read("one").said
    with chat("one", save=False) as talk:
        assert [message.role for message in talk.messages] == ["user", "assistant"]
        talk.ask("and now?")
    assert session.read("one").said == before
    with chat("two", save=False) as talk:
        talk.ask("what?")
    assert [found.name for found in session.list_sessions()] == ["one"]


@contextmanager
def full_disk(free: int = 0) -> Iterator[None]:
    """No file may become longer than `free` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_no_answer_and_is_told_once(chat: Chat) -> None:
    with chat("one") as talk:
        first = talk.ask("what?")
        with full_disk():
            second = talk.ask("and now?")
            assert second.text
            talk.undo()
            assert talk.ask("and now?").text == second.text
        said = list(talk.messages)
        assert len(said) == 4
        assert len(talk.transcript().said) == 4
    told = [line for line in chat.said.getvalue().splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "cannot keep session one" in told[0]
    assert "from here on nothing is kept" in told[0]
    assert [message.content for message in kept()] == ["what?", first.text]


def test_a_session_that_cannot_even_begin(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "sessions").write_text("in the way")
    with chat(keep=True) as talk:
        assert talk.ask("what?").text
        assert talk.ask("and now?").text
    assert chat.said.getvalue().count("error:") == 1


def test_an_answer_that_cannot_be_shown_leaves_all_as_it_was(chat: Chat) -> None:
    with chat("one") as talk:
        talk.ask("what?")
        before = list(talk.messages)
        with pytest.raises(ZeroDivisionError):
            talk.ask("and now?", Failing())
        assert talk.messages == before
        again = talk.ask("and now?")
        assert again.prefill.tokens_reused > 0
    with chat() as other:
        other.begin(before)
        assert other.ask("and now?").text == again.text
    assert [message.content for message in kept()][2:] == ["and now?", again.text]


def test_a_model_that_fails_can_be_asked_again(tmp_path: Path) -> None:
    chat = Chat(tiny.write_nan(tmp_path / "nan.gguf"))
    with chat("one") as talk:
        for _ in range(2):
            with pytest.raises(LocalspecError, match="no usable numbers"):
                talk.ask("what?")
        assert talk.messages == []
        assert talk.session
        assert talk.session.unanswered == "what?"


def test_a_question_that_is_too_long_changes_nothing(chat: Chat) -> None:
    with chat("one", ctx=256) as talk:
        with pytest.raises(ContextFull) as alone:
            talk.ask("x" * 600)
        assert not alone.value.turns
        assert "give --ctx 1024, or less text" in alone.value.hint
        assert (talk.messages, session.list_sessions()) == ([], [])
        for _ in range(3):
            talk.ask("x" * 20)
        with pytest.raises(ContextFull) as behind:
            talk.ask("x" * 80)
        assert behind.value.turns
        assert talk.drop_oldest("x" * 80) > 0
        assert talk.ask("x" * 80).text
    assert len(kept()) == 8


def test_a_summary_cannot_be_taken_back(chat: Chat) -> None:
    with chat("one") as talk:
        for question in (LONG, LONG, "what?", "and now?"):
            talk.ask(question)
        assert talk.compact()
        assert [talk.undo() for _ in range(window.KEPT_TURNS)] == ["and now?", "what?"]
        with pytest.raises(UsageError, match="nothing to take back"):
            talk.undo()
        said = list(talk.messages)
        assert len(said) == 2
    assert kept() == said


# Going on


def reused(chat: Chat, question: str = "and now?", **changes: Any) -> tuple[int, int]:
    """Go on with the last session: (tokens that were not read again, tokens that were)."""
    with chat(go_on=True, **changes) as talk:
        prefill = talk.ask(question).prefill
        return prefill.tokens_reused, prefill.tokens_read


def test_going_on_reads_only_the_question(chat: Chat) -> None:
    with chat(keep=True) as talk:
        talk.ask(LONG)
        used = len(talk.loaded.target.tokens)
    old, new = reused(chat)
    assert old in (used - 1, used)
    assert new < 30
    assert "read again" not in chat.said.getvalue()


def test_going_on_after_something_was_taken_back(chat: Chat) -> None:
    with chat(keep=True) as talk:
        answer = talk.ask(LONG)
        used = len(talk.loaded.target.tokens)
        talk.ask("and now?")
        talk.undo()
        assert talk.ask("and then?").text
        talk.undo()
    old, new = reused(chat, "and then?")
    assert old >= used - 1
    assert new < 30
    assert kept()[1].content == answer.text


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda raw: raw[: len(raw) // 2],
    "one bit": lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:],
    "empty": lambda raw: b"",
    "something else": lambda raw: b"{}\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_only_costs_time(chat: Chat, damage: str) -> None:
    with chat("one") as talk:
        talk.ask(LONG)
    with chat("one") as talk:
        good = talk.ask("and now?").text
        talk.undo()
    path = state.folder() / "one.caches"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with chat("one") as talk:
        answer = talk.ask("and now?")
    assert (answer.text, answer.prefill.tokens_reused) == (good, 0)
    assert "the conversation is read again: the state" in chat.said.getvalue()


def test_going_on_under_other_settings_says_why_it_reads_again(chat: Chat) -> None:
    with chat(keep=True) as talk:
        talk.ask(LONG)
    assert reused(chat, ctx=2048)[0] == 0
    assert "read again: the target was kept under another context size" in chat.said.getvalue()


def test_going_on_with_another_model(chat: Chat, tmp_path: Path) -> None:
    with chat(keep=True) as talk:
        first = talk.ask(LONG)
    other = tiny.write_llama(tmp_path / "other.gguf", n_layer=1)
    with chat(go_on=True, model=str(other)) as talk:
        assert [(message.content, message.tokens) for message in talk.messages] == [
            (LONG, None), (first.text, None)
        ]  # fmt: skip
        assert talk.ask("and now?").text
    assert "kept under another model" in chat.said.getvalue()
    assert [message.tokens is None for message in kept()] == [
        True,
        True,
        True,
        False,
    ]  # it was the last one's


# The draft model


@pytest.fixture
def draft(tmp_path: Path) -> str:
    return str(tiny.write_llama(tmp_path / "draft.gguf", noise=0.1))


def lazy_of(talk: Conversation) -> LazyDrafter:
    policy = talk.loaded.generator.policy
    assert isinstance(policy, Scheduler)
    found = policy.costly[0].drafter
    assert isinstance(found, LazyDrafter)
    return found


def test_a_draft_model_goes_on_too(chat: Chat, draft: str) -> None:
    with chat(keep=True, draft=draft) as talk:
        talk.ask(LONG)
        drafter = lazy_of(talk)
        drafter.open(talk.loaded.target.tokens)
        read = len(talk.loaded.target.tokens) - 1
    with chat(go_on=True, draft=draft) as talk:
        drafter, context = lazy_of(talk), talk.template.encode([*talk.messages, Message("user", "and now?")])
        drafter.begin([*context[:5], 9, 9, 9])
        assert drafter.unseen([*context[:5], 9, 9, 9]) == 3
        drafter.begin(context)
        assert drafter.unseen(context) <= len(context) - read  # what the scheduler counts with
        drafter.open(context)
        assert drafter.unseen(context) == 1
        model = talk.loaded.guessers.loaded_draft
        assert model
        assert model.tokens[:read] == context[:read]


def test_a_draft_model_that_is_loaded_at_once_goes_on_too(chat: Chat, draft: str) -> None:
    with chat(keep=True, draft_len=4, draft=draft) as talk:
        text = talk.ask(LONG).text
        model = talk.loaded.guessers.loaded_draft
        assert model
        known = list(model.tokens)
    with chat(go_on=True, draft_len=4, draft=draft) as talk:
        model = talk.loaded.guessers.loaded_draft
        assert model
        assert list(model.tokens) == known
        answer = talk.ask("and now?")
        assert answer.stats.drafted > 0
    with chat() as plain:
        assert plain.ask(LONG).text == text
        assert plain.ask("and now?").text == answer.text


# Another model, other guessers, another session


def test_another_model_in_the_middle(chat: Chat, tmp_path: Path) -> None:
    other = tiny.write_llama(tmp_path / "other.gguf", n_layer=1)
    with chat.opener("one") as opener:
        talk = opener.conversation
        first = talk.ask("what?")
        settings = talk.loaded.settings
        opener.reopen(talk, replace(settings, model=str(other)))
        assert talk.loaded.target.path == other
        assert [message.tokens for message in talk.messages] == [None, None]
        second = talk.ask("and now?")
        assert talk.stats.tokens == first.stats.tokens + second.stats.tokens
    assert [message.content for message in kept()] == ["what?", first.text, "and now?", second.text]
    assert session.read("one").model == str(other)


def test_other_guessers_do_not_read_it_again(chat: Chat) -> None:
    with chat.opener("one") as opener:
        talk = opener.conversation
        talk.ask(LONG)
        used = len(talk.loaded.target.tokens)
        opener.reopen(talk, replace(talk.loaded.settings, draft="ngram"))
        answer = talk.ask("and now?")
        assert answer.prefill.tokens_reused >= used - 1
        assert talk.loaded.seed == SEED


def test_what_was_left_out_stays_left_out(chat: Chat) -> None:
    with chat.opener("one", ctx=256, max_tokens=8) as opener:
        talk = opener.conversation
        for _ in range(4):
            talk.ask("x" * 30)
        assert talk.drop_oldest("y" * 80) > 0
        before = list(talk.messages)
        opener.reopen(talk, replace(talk.loaded.settings, draft="ngram"))
        assert talk.messages == before


def test_a_model_that_cannot_be_had_leaves_the_one_from_before(chat: Chat, tmp_path: Path) -> None:
    broken = tiny.write_damaged(tmp_path / "broken.gguf", "data")
    with chat.opener("one") as opener:
        talk = opener.conversation
        talk.ask("what?")
        for name, error in ((str(tmp_path / "no.gguf"), ModelNotFound), (str(broken), LocalspecError)):
            with pytest.raises(error):
                opener.reopen(talk, replace(talk.loaded.settings, model=name))
        assert talk.loaded.target.path == chat.path
        assert talk.ask("and now?").text
    assert len(kept()) == 4


def test_ctrl_c_while_another_model_is_loaded(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat.opener() as opener:
        talk = opener.conversation
        first = talk.ask("what?")
        load, loads = Opener.load, list[Settings]()

        def pressed(self: Opener, settings: Settings, path: Path | None = None) -> object:
            loads.append(settings)
            if len(loads) == 1:
                self.cancel.set()  # as the watcher does, when it is pressed
            return load(self, settings, path)

        monkeypatch.setattr(Opener, "load", pressed)
        with pytest.raises(LocalspecError, match="stopped"):
            opener.reopen(talk, replace(talk.loaded.settings, draft="ngram"))
        assert len(loads) == 2
        assert talk.loaded.settings.draft == "none"
        talk.undo()
        assert talk.ask("what?").text == first.text


def test_a_conversation_without_any_model_ends(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise LocalspecError("there is no memory")

    with chat.opener("one") as opener:
        talk = opener.conversation
        talk.ask("what?")
        monkeypatch.setattr(Opener, "load", refuse)
        with pytest.raises(SystemExit) as left:
            opener.reopen(talk, replace(talk.loaded.settings, draft="ngram"))
    assert left.value.code == 1
    assert "error: the model from before cannot be loaded again: there is no memory" in chat.said.getvalue()
    assert len(kept()) == 2  # and it was let go


def test_another_session_with_the_same_model(chat: Chat) -> None:
    with chat("one") as talk:
        talk.ask(LONG)
    with chat.opener("two") as opener:
        talk = opener.conversation
        talk.ask("what?")
        with pytest.raises(UsageError, match="there is no session three"):
            opener.go_on(talk, "three")
        assert talk.ask("and now?").text
        found = opener.go_on(talk, "one")
        assert found.ask("and now?").prefill.tokens_reused > 250
        session.load("two").close()  # it was let go
    assert [len(session.read(name).said) for name in ("one", "two")] == [4, 4]


# Grammars


def test_a_grammar_asks_a_model_not_to_think(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "CHATML", tiny.CHATML + "<think>")
    chat = Chat(tiny.write_llama(tmp_path / "thinker.gguf"))
    grammar = gbnf_of('{"enum": ["yes", "no"]}')
    with chat() as talk:
        free = talk.ask("really?")
        assert (free.text, bool(free.thinking)) == ("", True)
    with chat(grammar=grammar) as talk:
        held = talk.ask("really?")
        assert held.text in ('"yes"', '"no"')
        assert (held.thinking, held.finish_reason) == ("", "stop")
    with chat(grammar=grammar, think=True) as talk:  # as it was asked for
        assert talk.ask("really?").thinking in ('"yes"', '"no"')


def test_an_answer_that_ends_before_its_grammar_is_called_incomplete(chat: Chat) -> None:
    with chat(grammar=gbnf_of('{"const": "a text that is long enough"}'), max_tokens=4) as talk:
        answer = talk.ask("really?")
        assert answer.finish_reason == "length"
        talk.summarise(answer)
    assert "stopped at --max-tokens · incomplete: the grammar asks for more" in chat.said.getvalue()
