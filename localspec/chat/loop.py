"""`localspec chat`: one answer, a batch of them, or a conversation. What is kept, and what is loaded when."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from localspec import config
from localspec.app import Loaded, open_target
from localspec.chat import attach, batch, resume, session, store
from localspec.chat.conversation import Conversation
from localspec.chat.prompt import Message
from localspec.chat.session import Session
from localspec.chat.views import Events, Muted, Show
from localspec.config import Settings, is_text
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, UsageError
from localspec.llama.grammar import read_grammar
from localspec.llama.library import LOG, CancelFlag
from localspec.loading import Hear, budget
from localspec.models import catalog
from localspec.obtain import default_model, obtain
from localspec.policy import draft_model
from localspec.ui.interrupt import on_interrupt
from localspec.ui.keys import Keys
from localspec.ui.terminal import Terminal


@dataclass(frozen=True, slots=True)
class Options:
    """What `localspec chat` is asked for besides Settings.

    `interactive`: talk on after the first answer; keys then come from the terminal even if stdin was a pipe.
    `files`: as --file gives them. `session`: the name of one to go on with or to begin; `go_on`: with the
    last one. `schema`, `grammar`: files that say what answers must look like. `batch`: a file of prompts, and
    `out`, where their answers go. `stats` ends with what /stats says.
    """

    interactive: bool = False
    as_json: bool = False
    as_events: bool = False
    show_drafts: bool = False
    stats: bool = False
    files: tuple[str, ...] = ()
    session: str | None = None
    go_on: bool = False
    schema: str | None = None
    grammar: str | None = None
    batch: str | None = None
    out: str | None = None


def chat(
    settings: Settings, terminal: Terminal, question: str | None, sent: str | None, options: Options
) -> ExitStatus:
    """Answer `question` about `sent` (the text on stdin, if any), or talk until the user leaves."""
    grammar = read_grammar(_path(options.schema), _path(options.grammar))
    chatting = _Chat(settings, terminal, options, grammar)
    if options.batch:
        return chatting.answer_all(question, sent)
    _check_text(question, sent)
    asks = question is not None or sent is not None
    if not asks and (options.as_json or options.as_events):
        flag = "--json" if options.as_json else "--json-stream"
        raise UsageError(
            f"{flag} needs a question", f'for example: localspec chat {flag} "why is the sky blue?"'
        )
    with ExitStack() as stack:
        keys = stack.enter_context(_keyboard(sent)) if not asks or options.interactive else None
        stack.enter_context(_leaving_on_signals())
        try:
            conversation = chatting.open(stack, keep=keys is not None or terminal.out_tty)
        except Cancelled:
            return ExitStatus.INTERRUPTED
        status = chatting.answer_one(conversation, question, sent) if asks else ExitStatus.OK
        if keys is not None:
            status = chatting.talk(conversation, keys)
        if options.stats:
            chatting.conversation.show_stats()
        return status


class _Chat:
    """One run of the command."""

    def __init__(self, settings: Settings, terminal: Terminal, options: Options, grammar: str | None) -> None:
        self.settings, self.terminal, self.options, self.grammar = settings, terminal, options, grammar
        self.cancel = CancelFlag()
        self.show = Show(settings.plain, options.show_drafts, settings.think is True)
        self.conversation: Conversation
        self._asked = False  # whether --file went with a question

    def open(self, stack: ExitStack, *, keep: bool) -> Conversation:
        """Load the model and the session. `keep`: what is said is kept, unless the user wants otherwise."""
        kept = self._find_session(stack)
        loaded = self.load(self.settings)
        if kept is None and (keep or self.options.session) and self.settings.save:
            kept = session.new(*_model_of(loaded), self.settings.system or "", self.options.session)
        elif kept:
            kept.use(*_model_of(loaded))
            if kept.transcript.said and (why := resume.take_over(kept.name, loaded)):
                self.terminal.detail(f"the conversation is read again: {why}")
        self.conversation = Conversation(loaded, self.terminal, self.show, kept)
        stack.callback(self._close)
        return self.conversation

    def load(self, settings: Settings, path: Path | None = None) -> Loaded:
        """The model `settings` name and what guesses for it; `path`: its file, if it is known."""
        terminal = self.terminal
        LOG.echo = terminal.verbosity >= 2
        named = draft_model(settings.draft)
        path = path or find_model(settings, terminal)
        draft = obtain(named, terminal) if named else None
        hear = Hear(note=terminal.note, detail=terminal.detail, progress=terminal.progress)
        with on_interrupt(self.cancel.set):
            loaded = open_target(settings, path, draft, cancel=self.cancel, hear=hear, grammar=self.grammar)
        terminal.progress("")
        target = loaded.target
        terminal.detail(
            f"{target.path}: context {target.n_ctx} of {target.n_ctx_train} tokens, "
            f"{target.options.threads} threads, "
            f"{target.options.kv_type} KV cache, flash attention {target.options.flash_attn}, "
            f"guesses from {', '.join(loaded.guessers.sources) or 'nothing'}"
        )
        return loaded

    def answer_one(self, conversation: Conversation, question: str | None, sent: str | None) -> ExitStatus:
        """The answer to the question on the command line, as text or JSON."""
        options, terminal, self._asked = self.options, self.terminal, True
        view = Events(terminal) if options.as_events else Muted(terminal) if options.as_json else None
        try:
            with on_interrupt(self.cancel.set):
                answer = conversation.ask(self._message(conversation, question, sent), view)
        finally:
            self.cancel.clear()
        if isinstance(view, Events):
            view.event({"type": "end", **conversation.report(answer)})
        elif options.as_json:
            terminal.out.write(json.dumps(conversation.report(answer), ensure_ascii=False) + "\n")
            terminal.out.flush()
        else:
            conversation.end_row(answer)
        conversation.summarise(answer)
        return ExitStatus.INTERRUPTED if answer.finish_reason == "cancelled" else ExitStatus.OK

    def talk(self, conversation: Conversation, keys: IO[str]) -> ExitStatus:
        """The prompt loop."""
        from localspec.chat.repl import Prompt
        from localspec.chat.talk import Talk

        prompt = Prompt(
            self.terminal,
            keys,
            history_path=config.state_folder() / "history" if self.settings.save else None,
            toolbar=lambda: talk.toolbar(),  # noqa: PLW0108 -- there is no talk yet
            models=lambda: sorted(catalog.load()),
            vi=self.settings.vi,
        )
        single = os.environ.get("TERM") != "dumb"
        talk = Talk(conversation, prompt, Keys(keys.fileno(), single), self._reopen, self._go_on)
        return talk.run(self.options.files if not self._asked else ())

    def answer_all(self, question: str | None, sent: str | None) -> ExitStatus:
        """A batch: everything is checked before the model is loaded."""
        options, name = self.options, self.options.batch or ""
        if question is not None:
            raise UsageError("--batch takes its prompts from the file", "leave the question away")
        path = find_model(self.settings, self.terminal)
        about = f"{path} {self.grammar} {_that_matter(self.settings)}"
        work = batch.read_batch(_lines(name, sent), name, about=about, out=_path(options.out))
        with ExitStack() as stack:
            try:
                loaded = stack.enter_context(self.load(self.settings, path))
            except Cancelled:
                return ExitStatus.INTERRUPTED
            first = loaded.seed

            def answer(
                messages: Sequence[Message], seed: int | None, max_tokens: int | None
            ) -> dict[str, Any]:
                loaded.reseed(first if seed is None else seed)
                conversation = Conversation(loaded, self.terminal, self.show, None, list(messages[:-1]))
                try:
                    found = conversation.ask(messages[-1].content, Muted(self.terminal), max_tokens)
                    return conversation.report(found)
                finally:
                    conversation.close()

            return batch.run_batch(work, answer, self.terminal.out)

    def _find_session(self, stack: ExitStack) -> Session | None:
        """The one to go on with."""
        name = self.options.session
        if self.options.go_on and not name:
            return stack.enter_context(session.load())
        known = name is not None and store.path_of(name).exists()
        return stack.enter_context(session.load(name)) if known else None

    def _message(self, conversation: Conversation, question: str | None, sent: str | None) -> str:
        """Files, then stdin as a block, then the question."""
        files = self.options.files
        if sent is not None and question is not None and attach.STDIN not in files:
            files = (*files, attach.STDIN)
        if question is None:
            question, sent = sent or "", None
            if files:
                blocks = attach.attach("", files, room=conversation.room, count=conversation.count)
                return f"{blocks}{question}"
            return question
        return attach.attach(question, files, room=conversation.room, count=conversation.count, sent=sent)

    def _reopen(self, conversation: Conversation, settings: Settings) -> Conversation:
        """Another model or other guessers; if that cannot be had, all is as before."""
        before, was_at = conversation.loaded.settings, conversation.loaded.target.path
        settings = replace(settings, seed=conversation.loaded.seed)
        path = was_at if settings.model == before.model else find_model(settings, self.terminal)
        conversation.loaded.close()
        try:
            loaded = self.load(settings, path)
        except BaseException:
            self._take(conversation, self.load(before, was_at))
            raise
        return self._take(conversation, loaded)

    def _take(self, conversation: Conversation, loaded: Loaded) -> Conversation:
        """The same conversation with another load."""
        messages = conversation.messages
        if conversation.session:
            conversation.session.use(*_model_of(loaded))
        elif loaded.plan.target.fingerprint != conversation.loaded.plan.target.fingerprint:
            messages = [replace(message, tokens=None) for message in messages]
        conversation.close()
        found = Conversation(loaded, self.terminal, conversation.show, conversation.session, messages)
        found.stats, self.conversation = conversation.stats, found
        return found

    def _go_on(self, conversation: Conversation, name: str) -> Conversation:
        """Another session, with the model that is loaded."""
        found = session.load(name)
        loaded = conversation.loaded
        _keep(conversation)
        if conversation.session:
            conversation.session.close()
        conversation.close()
        found.use(*_model_of(loaded))
        resume.take_over(name, loaded)
        self.conversation = Conversation(loaded, self.terminal, conversation.show, found)
        return self.conversation

    def _close(self) -> None:
        conversation = self.conversation
        try:
            _keep(conversation)
        finally:
            if conversation.session:
                conversation.session.close()
            conversation.close()
            conversation.loaded.close()


def find_model(settings: Settings, terminal: Terminal) -> Path:
    """The file of the model to load: the one named, fetched if need be, or the best one here."""
    return obtain(settings.model, terminal) if settings.model else default_model(terminal, *budget())


def _keep(conversation: Conversation) -> None:
    """Keep the caches of a session that has begun."""
    kept = conversation.session
    if kept and kept.transcript.said:
        conversation.terminal.progress("keeping the conversation ...")
        if why := resume.keep(kept.name, conversation.loaded):
            conversation.terminal.detail(f"its cache is not kept: {why}")
        conversation.terminal.progress("")


def _model_of(loaded: Loaded) -> tuple[str, str]:
    """Name and fingerprint, as sessions keep them."""
    return str(loaded.target.path), loaded.plan.target.fingerprint


def _check_text(question: str | None, sent: str | None) -> None:
    for text, what in ((question, "the question"), (sent, "stdin")):
        if text is not None and not text.strip():
            raise UsageError(f"{what} is empty", "give some text, or </dev/null if nothing is meant to come")
        if text is not None and not is_text(text):
            raise UsageError(f"{what} has NUL bytes or is not UTF-8", "only text can be asked about")


def _path(name: str | None) -> Path | None:
    return Path(name).expanduser() if name is not None else None


def _lines(name: str, sent: str | None) -> list[bytes]:
    """The lines of a batch file, "-" for stdin."""
    if name == attach.STDIN:
        if sent is None:
            raise UsageError("--batch - has nothing to read", "localspec chat --batch - < prompts.jsonl")
        return sent.encode().split(b"\n")
    try:
        with open(os.path.expanduser(name), "rb") as file:
            return file.read().split(b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot read {attach.one_line(name)}: {error.strerror}", "check its path"
        ) from error


def _that_matter(settings: Settings) -> str:
    """The settings that answers depend on."""
    return repr(replace(settings, color="auto", plain=False, vi=False, save=True, model=None))


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as leaving does: nothing half-written, the terminal as before."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    ours = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, leave) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keyboard(sent: str | None) -> Iterator[IO[str]]:
    """Where keys come from: stdin, or the terminal itself when stdin was a pipe."""
    if sent is None and isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.isatty():
        sys.stdin.reconfigure(errors="replace")
        yield sys.stdin
        return
    path = "CONIN$" if sys.platform == "win32" else "/dev/tty"
    try:
        keys = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 -- closed below
    except OSError as error:
        raise UsageError(
            "there is no terminal to talk on", 'ask one thing: localspec chat "question"'
        ) from error
    with keys:
        yield keys
