"""A turn's two kinds of text, and a conversation's figures."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tables import AlwaysRight, RandomGuesses, TableModel

from localspec.app import open_target
from localspec.chat.conversation import Conversation
from localspec.chat.turn import Answer, run_turn
from localspec.chat.views import Show
from localspec.config import Settings
from localspec.engine.generate import Fixed, Generator
from localspec.engine.ledger import Ledger
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Drafter, Sampling, Source
from localspec.llama.library import CancelFlag
from localspec.loading import Hear
from localspec.ui.terminal import Terminal

PIECES = [b"a", b"b ", "é".encode()[:1], "é".encode()[1:], "中".encode(), b"\xf0\x9f", b"c", b"d"]


def generator(source: type[AlwaysRight] | None = AlwaysRight) -> Generator:
    model, sampler = TableModel(), Sampler(Sampling(1.0))
    drafter: Drafter = source(model, sampler) if source else RandomGuesses(model.n_vocab)
    return Generator(model, sampler, model.is_end, Fixed([Source(drafter, 3)]))


def turn(
    run: Generator, pieces: list[bytes], max_tokens: int, stops: tuple[str, ...] = ()
) -> tuple[Answer, list[tuple[str, bool]]]:
    """The answer, and its parts as they came: (text, whether it was guessed)."""
    parts: list[tuple[str, bool]] = []
    answer = run_turn(
        run,
        [1],
        piece=pieces.__getitem__,
        max_tokens=max_tokens,
        stops=stops,
        on_text=lambda text: parts.append((text, False)),
        on_guess=lambda text: parts.append((text, True)),
    )
    return answer, parts


@pytest.mark.parametrize("source", [AlwaysRight, None])
def test_guesses_and_the_rest_make_the_same_text(source: type[AlwaysRight] | None) -> None:
    """Characters and the stop string end anywhere in a draft."""
    whole = run_turn(generator(source), [1], piece=PIECES.__getitem__, max_tokens=60).text
    for place in range(3, len(whole) - 3, 4):
        stop = whole[place : place + 3]
        answer, parts = turn(generator(source), PIECES, 60, (stop,))
        assert "".join(text for text, _ in parts) == answer.text == whole[: whole.index(stop)]
    answer, parts = turn(generator(source), PIECES, 60)
    assert "".join(text for text, _ in parts) == answer.text == whole
    assert {guessed for _, guessed in parts} == {True, False}
    assert all(text for text, _ in parts)


def test_accepted_guesses_are_told_from_the_target_s_own_token() -> None:
    answer, parts = turn(generator(), [bytes([byte]) for byte in b"abcdefgh"], 12)
    assert [(len(text), guessed) for text, guessed in parts] == [(3, True), (1, False)] * 3
    assert answer.stats.accepted == sum(len(text) for text, guessed in parts if guessed)


# A conversation with a tiny model


@contextmanager
def talking(
    path: Path, terminal: Terminal, *, show_drafts: bool = False, **changes: Any
) -> Iterator[Conversation]:
    chosen = Settings(**{"threads": 1, "max_tokens": 40, "seed": 3, "ctx": 512, "temp": 0.0, **changes})
    with open_target(chosen, path, None, cancel=CancelFlag(), hear=Hear()) as loaded:
        talk = Conversation(loaded, terminal, Show(drafts=show_drafts))
        yield talk
        talk.close()


def screen(*, out_tty: bool = True) -> tuple[io.StringIO, io.StringIO, Terminal]:
    out, err = io.StringIO(), io.StringIO()
    return out, err, Terminal(out, err, out_tty, err_tty=True, err_color=False)


@pytest.mark.parametrize("show_drafts", [True, False])
@pytest.mark.parametrize("out_tty", [True, False])
def test_guesses_are_underlined_where_asked_for_on_a_terminal(
    tiny_path: Path, show_drafts: bool, out_tty: bool
) -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err, out_tty, err_tty=False, err_color=False)
    with talking(tiny_path, terminal, show_drafts=show_drafts, draft="ngram", draft_len=4) as talk:
        answer = talk.ask("one two one two")
    assert answer.stats.accepted > 0
    assert ("\x1b[4m" in out.getvalue()) is (show_drafts and out_tty)
    if not out_tty:
        assert out.getvalue() == answer.text


def test_a_dumb_terminal_gets_no_underline(tiny_path: Path) -> None:
    out, _, terminal = screen()
    with talking(tiny_path, terminal, show_drafts=True, draft="ngram", draft_len=4) as talk:
        assert talk.ask("one two one two").stats.accepted > 0
    assert "\x1b" not in out.getvalue()


def test_the_session_counts_all_turns(tiny_path: Path) -> None:
    out, err, terminal = screen()
    with talking(tiny_path, terminal, draft="ngram", draft_len=4) as talk:
        answers = [talk.ask("one two one two"), talk.ask("three")]
        assert talk.stats.tokens == sum(answer.stats.tokens for answer in answers) == 80
        assert talk.stats.accepted == sum(answer.stats.accepted for answer in answers)
        written = out.getvalue()
        talk.show_stats()
        assert "Acceptance by position" in err.getvalue()
        assert "Tokens by source: " in err.getvalue()
        assert out.getvalue() == written
        assert talk.report(answers[0])["stats"]["ledger"] is None  # lengths are fixed: nothing is weighed


def test_a_scheduled_answer_knows_its_gain(tiny_path: Path) -> None:
    _, err, terminal = screen(out_tty=False)
    with talking(tiny_path, terminal, draft="ngram") as talk:
        answer = talk.ask("one two one two")
        report = json.loads(json.dumps(talk.report(answer)))["stats"]
        policy = talk.loaded.generator.policy
        assert isinstance(policy, Scheduler)
        ledger: Ledger = policy.ledger
        assert report["ledger"]["tokens"] == ledger.tokens == 40
        assert report["gain"] == pytest.approx(
            report["seconds_plain"] / (answer.stats.seconds_decode + report["seconds_open"]), rel=1e-3
        )
        talk.summarise(answer)
        assert f"{answer.stats.gain:.2f}x plain" in err.getvalue()
