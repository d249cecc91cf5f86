"""The models and the session of a conversation: opened, exchanged while it goes on, and closed.

Whatever goes wrong in an exchange, the conversation has a loaded model and its session afterwards. What is
asked and how answers are shown is the callers'.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.app import Loaded, open_target
from localspec.chat import resume, session, store
from localspec.chat.conversation import Conversation
from localspec.chat.prompt import Message
from localspec.chat.session import Session
from localspec.chat.views import Show
from localspec.config import Settings
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, LocalspecError
from localspec.llama.library import LOG, CancelFlag
from localspec.loading import Hear, budget
from localspec.obtain import default_model, obtain
from localspec.policy import draft_model
from localspec.ui.interrupt import on_interrupt
from localspec.ui.terminal import Terminal


@dataclass(slots=True)
class Opener:
    """Opens the conversation of one run. `grammar`: what answers must look like, in GBNF.

    `conversation`: the one that is open; there is none before `open`.
    """

    settings: Settings
    terminal: Terminal
    show: Show
    grammar: str | None = None
    cancel: CancelFlag = field(default_factory=CancelFlag, init=False)
    conversation: Conversation = field(init=False)

    def open(self, stack: ExitStack, name: str | None, *, go_on: bool, keep: bool) -> Conversation:
        """Load the model and the session, which `stack` closes.

        `name`: the session's, to go on with or to begin; `go_on`: with the last one if there is no name;
        `keep`: what is said is kept even if no session was asked for. `--no-save` forbids to write any.
        """
        kept = _find_session(stack, name, go_on)
        loaded = self.load(self.settings)
        stack.callback(loaded.close)
        if kept is None and (keep or name) and self.settings.save:
            kept = session.new(*_model_of(loaded), self.settings.system or "", name)
        elif kept:
            self._take_over(kept, loaded)
        messages = kept.messages(loaded.target.n_vocab) if kept else begun(self.settings)
        if kept and not self.settings.save:
            kept.close()
            kept = None
        self.conversation = Conversation(loaded, self.terminal, self.show, kept, messages)
        stack.callback(self._close)
        return self.conversation

    def load(self, settings: Settings, path: Path | None = None) -> Loaded:
        """The model `settings` name and what guesses for it; `path`: its file, if it is known.

        Raises Cancelled at Ctrl-C.
        """
        terminal = self.terminal
        LOG.echo = terminal.verbosity >= 2
        path = path or find_model(settings, terminal)
        draft, hear = find_draft(settings, terminal), hearing(terminal)
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

    def reopen(self, conversation: Conversation, settings: Settings) -> Conversation:
        """Give `conversation` another model or other guessers; if they cannot be had, all is as before."""
        before, was_at = conversation.loaded.settings, conversation.loaded.target.path
        settings = replace(settings, seed=conversation.loaded.seed)
        path = was_at if settings.model == before.model else find_model(settings, self.terminal)
        _keep(conversation)
        conversation.loaded.close()
        try:
            self._hand_over(conversation, self.load(settings, path))
        except BaseException as error:
            self._restore(conversation, before, was_at)
            if isinstance(error, Cancelled | KeyboardInterrupt):
                raise LocalspecError("stopped", "the model is the one from before") from error
            raise
        return conversation

    def go_on(self, conversation: Conversation, name: str) -> Conversation:
        """Another session, with the model that is loaded."""
        found = session.load(name)
        loaded = conversation.loaded
        _keep(conversation)
        conversation.close()
        self._take_over(found, loaded)
        messages = found.messages(loaded.target.n_vocab)
        self.conversation = Conversation(loaded, self.terminal, conversation.show, found, messages)
        return self.conversation

    def _restore(self, conversation: Conversation, before: Settings, was_at: Path) -> None:
        """The model from before; a conversation without any cannot go on."""
        self.cancel.clear()
        try:
            self._hand_over(conversation, self.load(before, was_at))
        except (LocalspecError, Cancelled) as error:
            why = error.message if isinstance(error, LocalspecError) else "stopped"
            self.terminal.complain(f"the model from before cannot be loaded again: {why}")
            raise SystemExit(ExitStatus.ERROR) from error

    def _hand_over(self, conversation: Conversation, loaded: Loaded) -> None:
        conversation.use(loaded)
        if conversation.session:
            self._take_over(conversation.session, loaded)

    def _take_over(self, kept: Session, loaded: Loaded) -> None:
        """`kept` goes on with `loaded`, which need not read what was kept of its cache."""
        kept.use(*_model_of(loaded))
        if kept.transcript.said and (why := resume.take_over(kept.name, loaded)):
            self.terminal.detail(f"the conversation is read again: {why}")

    def _close(self) -> None:
        conversation = self.conversation
        try:
            _keep(conversation)
        finally:
            conversation.close()
            conversation.loaded.close()


def find_model(settings: Settings, terminal: Terminal) -> Path:
    """The file of the model to load: the one named, fetched if need be, or the best one here."""
    return obtain(settings.model, terminal) if settings.model else default_model(terminal, *budget())


def find_draft(settings: Settings, terminal: Terminal) -> Path | None:
    """The file of the draft model that is named, fetched if need be; None if none is."""
    named = draft_model(settings.draft)
    return obtain(named, terminal) if named else None


def hearing(terminal: Terminal) -> Hear:
    """The user, as who hears of what happens while a model is opened."""
    return Hear(note=terminal.note, detail=terminal.detail, progress=terminal.progress)


def begun(settings: Settings) -> list[Message]:
    """A conversation in which nothing was said yet."""
    return [Message("system", settings.system)] if settings.system else []


def _find_session(stack: ExitStack, name: str | None, go_on: bool) -> Session | None:
    """The one to go on with, if there is one."""
    if go_on and not name:
        return stack.enter_context(session.load())
    known = name is not None and store.path_of(name).exists()
    return stack.enter_context(session.load(name)) if known else None


def _keep(conversation: Conversation) -> None:
    """Keep the caches of a session that has begun."""
    kept, terminal = conversation.session, conversation.terminal
    if kept and kept.transcript.said:
        terminal.progress("keeping the conversation ...")
        if why := resume.keep(kept.name, conversation.loaded):
            terminal.detail(f"its cache is not kept: {why}")
        terminal.progress("")


def _model_of(loaded: Loaded) -> tuple[str, str]:
    """Name and fingerprint, as sessions keep them."""
    return str(loaded.target.path), loaded.plan.target.fingerprint
