"""The prompt: one message from the keyboard, with editing, history and completion.

The only module that knows prompt_toolkit, which takes long to import: import this one when a prompt is to
appear. What is shown goes through it as plain text, never as markup or escape codes. Knows nothing of
models or of what a message means, but for what `commands` says about lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import has_focus, vi_navigation_mode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import Processor, TabsProcessor, Transformation, TransformationInput
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from localspec.chat import history
from localspec.chat.commands import is_open
from localspec.chat.complete import complete, list_folder
from localspec.ui.keys import hushed
from localspec.ui.terminal import Terminal, sanitise

FIRST, FURTHER = "> ", ". "
"""What stands before the first line of a message, and before each further one."""
LEAVING = "Ctrl-C again or Ctrl-D leaves"
_VI_ESCAPE = 0.2  # seconds in which Esc may still become Alt-Enter


class Prompt:
    """Reads messages. `keys`: the terminal they are typed on, which need not be stdin.

    It appears on stdout if that is a terminal, else on stderr. `history_path`: keeps what was
    typed, None keeps it in memory. `toolbar`: parts joined by " · " for the row below the line; the last
    ones are left out where the window is too narrow. `models`: names to complete, asked for in a thread.
    """

    def __init__(
        self,
        terminal: Terminal,
        keys: IO[str],
        *,
        history_path: Path | None = None,
        toolbar: Callable[[], str] = str,
        models: Callable[[], Iterable[str]] = tuple,
        vi: bool = False,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self._keys = keys
        self._screen = terminal.out if terminal.out_tty else terminal.err
        self._toolbar = toolbar
        self._leaving = False
        term = env.get("TERM", "dumb")
        plain = term in ("dumb", "unknown") or not (self._screen.isatty() and keys.isatty())
        self._session = (
            None if plain else self._begin(term, terminal.err_color, _History(history_path), models, vi)
        )

    def read(self) -> str | None:
        """The next message as it was typed, never blank; None when the user leaves.

        Ctrl-C clears what is typed; with nothing typed it says how to leave, and does so the second time.
        """
        self._leaving = False
        if self._session is None:
            return self._read_plainly()
        try:
            return self._session.prompt(FIRST)
        except EOFError:
            return None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While the program works: what is typed does not show, and comes to the next prompt as it was typed.

        A paste too, so that it does not send either.
        """
        if self._session is None:
            yield
            return
        output = self._session.output
        output.enable_bracketed_paste()
        output.flush()
        try:
            with hushed(self._keys.fileno()):
                yield
        finally:
            output.disable_bracketed_paste()
            output.flush()

    def _begin(
        self, term: str, color: bool, past: History, models: Callable[[], Iterable[str]], vi: bool
    ) -> PromptSession[str | None]:
        screen = cast(TextIO, self._screen)
        output = create_output(screen) if sys.platform == "win32" else _Output.from_pty(screen, term)
        session: PromptSession[str | None] = PromptSession(
            input=create_input(stdin=cast(TextIO, self._keys)),
            output=output,
            multiline=True,
            prompt_continuation=lambda width, _, wraps: " " * width if wraps else FURTHER,
            history=past,
            completer=_Completer(models),
            complete_while_typing=False,
            complete_in_thread=True,
            editing_mode=EditingMode.VI if vi else EditingMode.EMACS,
            key_bindings=self._bindings(),
            bottom_toolbar=lambda: self._bottom(output),
            input_processors=[_Visible(), TabsProcessor(tabstop=4, char1=" ", char2=" ")],
            style=Style([("bottom-toolbar", "noreverse ansibrightblack" if color else "noreverse")]),
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            enable_suspend=True,
            reserve_space_for_menu=6,
            tempfile_suffix=".md",
        )
        if vi:
            session.app.timeoutlen = _VI_ESCAPE
        session.default_buffer.on_text_changed += self._stay
        return session

    def _bottom(self, output: Output) -> StyleAndTextTuples:
        text = LEAVING if self._leaving else self._toolbar()
        return [("", fit_parts(sanitise(" ".join(text.split())), output.get_size().columns))]

    def _stay(self, _: Buffer) -> None:
        self._leaving = False

    def _bindings(self) -> KeyBindings:
        bindings, typing = KeyBindings(), has_focus(DEFAULT_BUFFER)

        @bindings.add("enter", filter=typing)
        def enter(event: KeyPressEvent) -> None:
            _enter(event.current_buffer)

        @bindings.add("escape", "enter", filter=typing)
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @bindings.add("c-x", "c-e", filter=typing)
        @bindings.add("v", filter=typing & vi_navigation_mode)
        def edit(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()  # which Enter then sends, unlike in readline

        @bindings.add("c-c", filter=typing)
        @bindings.add("<sigint>", filter=typing)
        def interrupt(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            elif self._leaving:
                event.app.exit(result=None)
            else:
                self._leaving = True

        return bindings

    def _read_plainly(self) -> str | None:
        """Lines as the terminal itself edits them: for screens on which no cursor can be moved."""
        text = ""
        while True:
            try:
                self._say(FURTHER if text else FIRST)
                line = self._keys.readline()
            except KeyboardInterrupt:
                self._say("\n")
                if self._leaving:
                    return None
                self._leaving, text = True, ""
                self._say(f"{LEAVING}\n")
                continue
            if not line:
                self._say("\n")
                return None
            self._leaving = False
            text += line.removesuffix("\n")
            if text.endswith("\\") and not is_open(text):
                text = text[:-1] + "\n"
            elif is_open(text):
                text += "\n"
            elif text.strip():
                return text
            else:
                text = ""

    def _say(self, text: str) -> None:
        self._screen.write(text)
        self._screen.flush()


class _Output(Vt100_Output):
    def get_rows_below_cursor_position(self) -> int:
        """Nobody asks the terminal where the cursor is, whose answer could come late or never.

        So the toolbar stays right under what is typed.
        """
        return 1


def _enter(buffer: Buffer) -> None:
    """Send, unless a completion is being chosen, the line ends in a backslash, or a block is open."""
    if buffer.complete_state and buffer.complete_state.current_completion:
        buffer.complete_state = None
    elif is_open(buffer.text):
        buffer.insert_text("\n")
    elif buffer.document.is_cursor_at_the_end_of_line and buffer.document.char_before_cursor == "\\":
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    elif buffer.text.strip():
        buffer.validate_and_handle()


def fit_parts(text: str, columns: int) -> str:
    """`text` without the last parts, as many as do not fit `columns`; the first one is cut if it must be."""
    parts = text.split(" · ")
    while len(parts) > 1 and get_cwidth(" · ".join(parts)) > columns:
        parts.pop()
    text = " · ".join(parts)
    while get_cwidth(text) > columns:
        text = text[:-1]
    return text


class _Visible(Processor):
    """Shows what has no shape of its own, such as a mark that reverses the direction of text, as U+FFFD."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        return Transformation(
            [(fragment[0], _visible(fragment[1])) for fragment in transformation_input.fragments]
        )


def _visible(text: str) -> str:
    if text.isascii():  # prompt_toolkit shows these controls itself, as ^[
        return text
    return "".join(char if sanitise(char) or char < "\xa0" else "\ufffd" for char in text)


class _Completer(Completer):
    def __init__(self, models: Callable[[], Iterable[str]]) -> None:
        self._models = models

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        for found in complete(document.text_before_cursor, self._models, list_folder):
            yield Completion(found.text, -found.replaces, [("", found.shown)])


class _History(History):
    """Messages, each once; kept in a file if there is a path."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        return history.load(self._path) if self._path else []

    def append_string(self, string: str) -> None:
        if string in self._loaded_strings:
            self._loaded_strings.remove(string)
        super().append_string(string)

    def store_string(self, string: str) -> None:
        if self._path:
            history.store(self._path, string)
