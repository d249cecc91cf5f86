"""The prompt loop with a tiny model: what commands do to a conversation, and what when they fail."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec import config
from localspec.app import Loaded, open_target
from localspec.chat.conversation import Conversation
from localspec.chat.talk import OPENING, Talk
from localspec.config import Settings
from localspec.errors import ExitStatus, LocalspecError
from localspec.llama.library import CancelFlag
from localspec.ui.keys import Keys
from localspec.ui.terminal import Terminal


class Script:
    """A prompt at which these lines are typed, one after the other; functions are called in between."""

    def __init__(self, lines: Sequence[str | Callable[[], None]]) -> None:
        self.lines = list(lines)

    def read(self) -> str | None:
        while self.lines:
            line = self.lines.pop(0)
            if isinstance(line, str):
                return line
            line()
        return None

    @contextmanager
    def busy(self) -> Iterator[None]:
        yield


class Desk:
    """A talk at a terminal that keeps what is said. `lines` of keys answer questions."""

    def __init__(self, model: Path, *, keys: str = "", **settings: object) -> None:
        given = {"threads": 1, "ctx": 256, "seed": 1, "max_tokens": 8, "draft": "none", **settings}
        self.cancel = CancelFlag()
        self.model = model
        self.terminal = Terminal(
            io.StringIO(), io.StringIO(), out_tty=False, err_tty=False, err_color=False, verbosity=0
        )
        self.conversation = Conversation(self.load(config.load(given)), self.terminal)
        read, write = os.pipe()
        os.write(write, keys.encode())
        os.close(write)
        self.keys = Keys(read, single=False)
        self.fails: LocalspecError | None = None

    def load(self, settings: Settings) -> Loaded:
        return open_target(settings, self.model, None, cancel=self.cancel)

    def reopen(self, conversation: Conversation, settings: Settings) -> Conversation:
        if self.fails:
            raise self.fails
        conversation.loaded.close()
        conversation.use(self.load(settings))
        return conversation

    def talk(self, *lines: str | Callable[[], None], files: Sequence[str] = ()) -> str:
        """What is said on stderr when `lines` are typed."""
        self.terminal.err = io.StringIO()
        prompt = Script(lines)
        talk = Talk(self.conversation, prompt, self.keys, self.reopen, lambda talk, _: talk)  # type: ignore[arg-type]
        self.running = talk
        assert talk.run(files) is ExitStatus.OK
        said: str = self.terminal.err.getvalue()
        assert said.startswith(f"{OPENING}\n")
        return said.removeprefix(f"{OPENING}\n")

    def close(self) -> None:
        self.conversation.close()
        self.conversation.loaded.close()
        os.close(self.keys.fd)


@pytest.fixture
def desk(tiny_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**options: object) -> Desk:
        made.append(Desk(tiny_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def roles(one: Desk) -> str:
    return "".join(message.role[0] for message in one.conversation.messages)


def test_messages_commands_and_leaving(desk: Callable[..., Desk]) -> None:
    one = desk()
    said = one.talk("one", "  ", "two", "/undo", "/system be brief", "/exit", "never read")
    assert roles(one) == "sua"
    assert one.conversation.messages[1].content == "one"
    assert "taken back: two" in said


def test_an_error_ends_no_conversation(desk: Callable[..., Desk]) -> None:
    one = desk()
    said = one.talk("/undo", "/nope", "/file nowhere", "/edit a b", "/think so", "/compact", "one")
    assert said.count("error: ") == 6
    assert roles(one) == "ua"


def test_a_retry_asks_again_with_another_seed(desk: Callable[..., Desk]) -> None:
    one = desk()
    one.talk("one")
    seed, before = one.conversation.loaded.seed, one.conversation.messages
    one.talk("/retry")
    assert one.conversation.loaded.seed != seed
    assert one.conversation.messages[0] == before[0]
    assert roles(one) == "ua"


def test_files_go_with_one_message(desk: Callable[..., Desk], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("milk")
    one = desk(ctx=512)
    bars: list[str] = []
    one.talk(
        f"/file {tmp_path}/a.txt",
        lambda: bars.append(one.running.toolbar()),
        "one",
        lambda: bars.append(one.running.toolbar()),
        "two",
    )
    questions = [message.content for message in one.conversation.messages if message.role == "user"]
    assert ["milk" in question for question in questions] == [True, False]


def test_files_wait_for_a_message_that_can_be_asked(desk: Callable[..., Desk], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("milk")
    one = desk()
    said = one.talk("long " * 100, "one", files=[f"{tmp_path}/a.txt"])
    assert "error: the prompt has" in said
    assert "milk" in one.conversation.messages[0].content


def fill(one: Desk) -> str:
    """Two turns, then a question for which there is no room beside them; what is said from then on."""
    return one.talk("x " * 40, "y " * 40, "z " * 50)


def test_no_room_and_not_now(desk: Callable[..., Desk]) -> None:
    one = desk(keys="what?\n\nnot now\n")
    assert fill(one).endswith("not asked; the Up key brings it back\n")
    assert roles(one) == "uaua"


def test_no_room_and_the_oldest_go(desk: Callable[..., Desk]) -> None:
    one = desk(keys="drop\n")
    said = fill(one)
    assert "messages left out" in said
    assert one.conversation.messages[-2].content == ("z " * 50).strip()


def test_no_room_and_a_larger_context(desk: Callable[..., Desk]) -> None:
    one = desk(keys="L\n")
    fill(one)
    assert one.conversation.loaded.target.n_ctx == 1024
    assert roles(one) == "uauaua"


def test_no_room_and_no_larger_context_asks_again(desk: Callable[..., Desk]) -> None:
    one = desk(keys="l\nn\n")
    one.fails = LocalspecError("no memory", "try less")
    said = fill(one)
    assert "error: no memory; try less" in said
    assert said.count("[n]ot now?") == 2
    assert roles(one) == "uaua"


def test_no_room_at_all_is_refused_at_once(desk: Callable[..., Desk]) -> None:
    one = desk()
    said = one.talk("one", "long " * 200)
    assert "[n]ot now" not in said
    assert roles(one) == "ua"


def test_a_full_context_is_told_once(desk: Callable[..., Desk]) -> None:
    one = desk(max_tokens=4)
    said = one.talk("x " * 90, "hi", "ho")
    assert said.count("% of the context is used: /compact shortens the conversation") == 1
