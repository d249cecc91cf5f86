"""The prompt loop: a message, an answer, until the user leaves. What each slash command does.

Ctrl-C stops an answer and keeps what there is of it; at the prompt it clears the line. Nothing that goes
wrong here ends the conversation.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from localspec.chat import attach, session, transcript
from localspec.chat.commands import Command, help_text, parse, split_path
from localspec.chat.conversation import ContextFull, Conversation
from localspec.chat.repl import Prompt
from localspec.chat.turn import Answer
from localspec.config import Settings
from localspec.errors import ExitStatus, LocalspecError, UsageError, reason
from localspec.ui.interrupt import on_interrupt
from localspec.ui.keys import ENTER, Keys, hushed
from localspec.ui.terminal import Terminal

Take = Callable[[str, str, Terminal, Keys], None]
"""Puts the code of an answer into a file, once that is confirmed: (path, answer, terminal, keys)."""
ROOM = "[c]ompact into a summary, [d]rop the oldest turns, [l]arger context, [n]ot now"
OPENING = "/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves"


class Talk:
    """A conversation at a terminal.

    `reopen` loads another model, or the same with other guessers, and `go_on` takes up another session: both
    return the conversation to go on with. `take` is what /edit does, None if it can do nothing.
    """

    def __init__(
        self,
        conversation: Conversation,
        prompt: Prompt,
        keys: Keys,
        reopen: Callable[[Conversation, Settings], Conversation],
        go_on: Callable[[Conversation, str], Conversation],
        take: Take | None = None,
    ) -> None:
        self.conversation, self._prompt, self._keys = conversation, prompt, keys
        self._reopen, self._go_on, self._take = reopen, go_on, take
        self._files: list[str] = []  # to go with the next message
        self._warned = False
        self._bar = ""

    @property
    def terminal(self) -> Terminal:
        return self.conversation.terminal

    def run(self, files: Sequence[str] = ()) -> ExitStatus:
        """Until the user leaves. `files` go with the first message."""
        self.terminal.note(OPENING)
        self._files = list(files)
        self._offer_unanswered()
        while (typed := self._read()) is not None:
            try:
                if self._obey(typed):
                    break
            except LocalspecError as error:
                self.terminal.complain(error.message, error.hint)
            except KeyboardInterrupt:  # a second Ctrl-C, or one outside an answer
                self.conversation.loaded.cancel.clear()
                self.terminal.say("\n")
        return ExitStatus.OK

    def answer(self, question: str) -> Answer | None:
        """Ask the model; where the context is full, ask the user what is to go. None: it was not asked."""
        conversation = self.conversation
        try:
            with self._prompt.busy(), on_interrupt(conversation.loaded.cancel.set):
                answer = conversation.ask(question)
        except ContextFull as error:
            if not error.turns:
                raise
            return self.answer(question) if self._make_room(error, question) else None
        finally:
            conversation.loaded.cancel.clear()
        conversation.end_row(answer)
        conversation.summarise(answer)
        self._warn_if_full(answer)
        return answer

    def toolbar(self) -> str:
        """Model, context, and what the last answer came to: the row below the prompt."""
        return self._bar

    def _read(self) -> str | None:
        self._bar = self._figures()  # not while the prompt is drawn: counting tokens may have to warn
        return self._prompt.read()

    def _figures(self) -> str:
        conversation, loaded = self.conversation, self.conversation.loaded
        fit = conversation.fit
        parts = [loaded.target.path.stem, f"ctx {_short(fit.used)}/{_short(fit.total)}"]
        if self._files:
            parts.insert(0, f"{len(self._files)} file{'s' * (len(self._files) > 1)} attached")
        if conversation.last and (stats := conversation.last.stats).passes:
            parts.append(f"{stats.tokens / stats.passes:.1f} tok/pass")
            parts.append(f"{stats.tokens_per_second:.0f} tok/s")
            if stats.gain:
                parts.append(f"{stats.gain:.2f}x plain")
        parts.append("+".join(loaded.guessers.sources) or "no guesses")
        return " · ".join(parts)

    def _obey(self, typed: str) -> bool:
        """Do what was typed; whether to leave."""
        asked = parse(typed)
        if isinstance(asked, Command):
            if asked.name == "exit":
                return True
            commands: dict[str, Callable[[str], None]] = {
                "help": lambda _: self.terminal.say(help_text()),
                "stats": lambda _: self.conversation.show_stats(),
                "clear": self._clear,
                "undo": self._undo,
                "retry": self._retry,
                "system": self._system,
                "file": self._file,
                "edit": self._edit,
                "model": self._model,
                "draft": self._draft,
                "compact": self._compact,
                "save": self._save,
                "sessions": self._sessions,
                "think": self._think,
            }
            commands[asked.name](asked.argument)
        elif asked:
            self._ask(asked)
        return False

    def _ask(self, question: str) -> None:
        """A message with its files, which wait for the next one if this could not be asked."""
        if self.answer(self._attached(question, self._files)):
            self._files = []

    def _attached(self, question: str, files: Sequence[str]) -> str:
        conversation = self.conversation
        return attach.attach(question, files, room=conversation.room, count=conversation.count)

    def _clear(self, _: str) -> None:
        self.conversation.clear()
        self._files, self._warned = [], False
        self.terminal.note("forgotten; the system message stays")

    def _undo(self, _: str) -> None:
        question = self.conversation.undo()
        self._warned = False
        self.terminal.note(f"taken back: {transcript.title_of(question)}")

    def _retry(self, _: str) -> None:
        question = self.conversation.unanswered or self.conversation.undo()
        self.conversation.loaded.reseed(secrets.randbits(32))
        self.answer(question)

    def _system(self, text: str) -> None:
        if text:
            self.conversation.set_system(text)
            self.terminal.note("the system message is another from now on")
        else:
            self.terminal.note(
                self.conversation.system or "there is no system message; /system TEXT sets one"
            )

    def _file(self, argument: str) -> None:
        path, question = split_path(argument)
        self._attached("", [path])  # or it is refused
        self._files.append(path)
        if question:
            self._ask(question)
        else:
            self.terminal.note(f"{attach.one_line(path)} goes with the next message")

    def _edit(self, argument: str) -> None:
        """The last answer's code into a file."""
        path, rest = split_path(argument)
        answers = [m.content for m in self.conversation.messages if m.role == "assistant"]
        if rest or not path:
            raise UsageError("/edit takes one file", 'put a name with blanks in quotes: /edit "my file.py"')
        if not answers or self._take is None:
            raise UsageError("there is no answer whose code could go into a file", "ask for code first")
        self._take(path, answers[-1], self.terminal, self._keys)

    def _model(self, name: str) -> None:
        target = self.conversation.loaded.target
        if name:
            self._open_with(replace(self.conversation.loaded.settings, model=name))
            target = self.conversation.loaded.target
        self.terminal.note(f"{target.path.stem}, context {target.n_ctx}")

    def _draft(self, name: str) -> None:
        if name:
            self._open_with(replace(self.conversation.loaded.settings, draft=name))
        sources = self.conversation.loaded.guessers.sources
        self.terminal.note(f"guesses come from {', '.join(sources) or 'nobody'}")

    def _open_with(self, settings: Settings) -> None:
        self.conversation = self._reopen(self.conversation, settings)
        self._warned = False

    def _compact(self, _: str) -> None:
        conversation, before = self.conversation, self.conversation.fit.used
        self.terminal.progress("summarising ...")
        try:
            with self._prompt.busy(), on_interrupt(conversation.loaded.cancel.set):
                done = conversation.compact()
        finally:
            conversation.loaded.cancel.clear()
        self._warned = False
        told = f"from {before} to {conversation.fit.used} tokens" if done else "stopped: nothing has changed"
        self.terminal.note(told)

    def _save(self, name: str) -> None:
        """As Markdown, or as the ending of the name says. Never over a file that is there."""
        conversation = self.conversation
        forms = {".json": transcript.as_json, ".txt": transcript.as_text}
        title = conversation.session.name if conversation.session else "conversation"
        path = Path(name or f"{title}.md").expanduser()
        told = forms.get(path.suffix, transcript.as_markdown)(conversation.transcript())
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(told)
        except FileExistsError as error:
            raise UsageError(f"{attach.one_line(str(path))} is there already", "give another name") from error
        except OSError as error:
            raise UsageError(f"cannot write {attach.one_line(str(path))}: {reason(error)}", "") from error
        self.terminal.note(f"written to {path}")

    def _sessions(self, name: str) -> None:
        if not name:
            self.terminal.say("".join(f"{line}\n" for line in session.listed(session.list_sessions())))
            return
        self.conversation = self._go_on(self.conversation, name)
        self._files, self._warned = [], False
        self.terminal.note(f"going on with {name}")
        self._offer_unanswered()

    def _think(self, wanted: str) -> None:
        if wanted not in ("", "on", "off"):
            raise UsageError(f"/think {wanted} means nothing", "give on, off, or neither")
        shown = self.conversation.show.thoughts
        shown = wanted == "on" if wanted else not shown
        self.conversation.show = replace(self.conversation.show, thoughts=shown)
        self.terminal.note("thoughts are shown" if shown else "thoughts are folded")

    def _make_room(self, full: ContextFull, question: str) -> bool:
        """Ask what is to go, and let it go; False: the question is not to be asked now."""
        self.terminal.complain(full.message)
        while (key := self._choose(f"{ROOM}? ", "cdln")) != "n":
            try:
                if key == "c":
                    self._compact("")
                elif key == "d":
                    self.terminal.note(f"{self.conversation.drop_oldest(question)} messages left out")
                else:
                    self._enlarge(full.used)
            except LocalspecError as error:
                self.terminal.complain(error.message, error.hint)
            else:
                return True
        self.terminal.note("not asked; the Up key brings it back")
        return False

    def _choose(self, question: str, keys: str) -> str:
        """One of `keys`, the last of them at Enter, Ctrl-D or the end."""
        with hushed(self._keys.fd) if self._keys.single else nullcontext():
            self._keys.forget()
            self.terminal.say(question)
            found = ""
            while not found or found not in keys:
                pressed = self._keys.key()
                found = keys[-1] if pressed is None or pressed == ENTER else pressed.lower()
            self.terminal.say(f"{found}\n" if self._keys.single else "")
        return found

    def _enlarge(self, used: int) -> None:
        loaded = self.conversation.loaded
        self._open_with(replace(loaded.settings, ctx=_larger(used, loaded.target.n_ctx_train)))

    def _warn_if_full(self, answer: Answer) -> None:
        fit = self.conversation.fit
        if answer.finish_reason == "context":
            self.terminal.note("/compact makes room, then /retry")
        elif fit.warn and not self._warned:
            self._warned = True
            self.terminal.note(
                f"{100 * fit.used // fit.total} % of the context is used: /compact shortens the conversation"
            )

    def _offer_unanswered(self) -> None:
        if question := self.conversation.unanswered:
            self.terminal.note(f"not answered yet: {transcript.title_of(question)} - /retry asks it")


def _larger(used: int, most: int) -> int:
    """A context in which as much again has room."""
    wanted: int = 1 << (used + 512).bit_length()
    if used >= most:
        raise UsageError(f"the model was made for {most} tokens", "/compact shortens the conversation")
    return min(wanted, most)


def _short(tokens: int) -> str:
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)
