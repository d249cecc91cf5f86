"""How messages become one text: by the model's own template, in a process that can do no harm, or by name.

A Renderer sends a model's template to a child (render.py), which it starts at the first use, keeps warm,
stops when it takes too long, and starts again once when it dies. A Named template is a few words of ours, for
a model whose own is missing or fails; the vocabulary tells which. Knows nothing of tokens.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

LONGEST_TEMPLATE = 64 * 1024  # characters
SECONDS_RENDER = 2.0
SECONDS_START = 20.0  # a hundred times what it takes
_KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without which some Pythons do not start


class TemplateFailed(Exception):
    """Why a template gave no prompt, in words; partly in the template's own."""


class Renderer:
    """Renders one template, whatever it tries. To be closed; its child ends with it at the latest."""

    def __init__(self, source: str, *, seconds: float = SECONDS_RENDER) -> None:
        self._source = source
        self._seconds = seconds
        self._child: _Child | None = None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for `variables` (JSON values). Raises TemplateFailed."""
        if len(self._source) > LONGEST_TEMPLATE:
            raise TemplateFailed(f"it is {len(self._source)} characters long")
        most = 8 * len(json.dumps(variables)) + (1 << 20)
        now = datetime.now().isoformat()
        request = {"source": self._source, "variables": variables, "now": now, "most": most}
        reply = self._ask(json.dumps(request).encode(), 12 * most + 1000)  # one may take two escapes of 6
        if isinstance(text := reply.get("text"), str) and len(text) <= most:
            return text
        raise TemplateFailed(str(reply.get("error", "it writes nonsense")))

    def close(self) -> None:
        """End the child. A later render starts another."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _ask(self, request: bytes, most: int) -> dict[str, Any]:
        for _ in range(2):
            try:
                self._child = self._child or _Child()
                reply = json.loads(self._child.ask(request, self._seconds, most))
                return reply if isinstance(reply, dict) else {}
            except EOFError:
                self.close()
            except TimeoutError:
                self.close()
                raise TemplateFailed(f"it takes longer than {self._seconds:g} s") from None
            except OSError as error:
                self.close()
                raise TemplateFailed(f"it cannot be run here: {error}") from error
            except (ValueError, RecursionError):
                self.close()
                raise TemplateFailed("it writes nonsense") from None
            except BaseException:  # Ctrl-C: a reply that nobody waits for must not answer the next request
                self.close()
                raise
        raise TemplateFailed("it ends the process that runs it")


class _Child:
    """A running render.py. Raises OSError when it does not start."""

    def __init__(self) -> None:
        places = (importlib.util.find_spec(name) for name in ("jinja2", "markupsafe"))
        folders = {str(Path(spec.origin).parents[1]) for spec in places if spec and spec.origin}
        program = str(Path(__file__).with_name("render.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", program, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(program).anchor,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            start_new_session=True,  # the terminal's Ctrl-C is for us
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._talk = ThreadPoolExecutor(1)  # not every system can wait for a pipe with a time limit
        self.end = weakref.finalize(self, _end, self._process, self._talk)
        try:
            self.ask(b"", SECONDS_START, 0)
        except (EOFError, TimeoutError, ValueError):
            self.end()
            raise OSError("its process does not start") from None

    def ask(self, request: bytes, seconds: float, most: int) -> bytes:
        """The reply of at most `most` bytes. Raises EOFError when it died, TimeoutError, ValueError.

        After either there is nothing to do but `end` it, which also ends what still waits for it.
        """
        return self._talk.submit(_exchange, self._process, request, most).result(seconds)


def _exchange(process: subprocess.Popen[bytes], request: bytes, most: int) -> bytes:
    """The frame that answers `request`; the first comes unasked."""
    assert process.stdin
    assert process.stdout
    if request:
        try:
            process.stdin.write(len(request).to_bytes(4, "big") + request)
            process.stdin.flush()
        except OSError:
            raise EOFError from None
    head = process.stdout.read(4)
    size = int.from_bytes(head, "big")
    if size > most:
        raise ValueError(f"a reply of {size} bytes")
    frame = process.stdout.read(size)
    if len(head) < 4 or len(frame) < size:
        raise EOFError
    return frame


def _end(process: subprocess.Popen[bytes], talk: ThreadPoolExecutor) -> None:
    process.kill()
    process.wait()
    talk.shutdown(wait=False)
    assert process.stdin
    assert process.stdout
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not sent
            stream.close()


@dataclass(frozen=True, slots=True)
class Named:
    """A usual form of conversation. `system` "": its text goes before the first user message.

    `signs`: the special tokens that a vocabulary has if its model knows this form.
    """

    name: str
    signs: tuple[str, ...]
    system: str
    user: str
    assistant: str
    opening: str

    def render(self, messages: list[dict[str, str]]) -> str:
        """The conversation up to where the assistant is to answer."""
        forms = {"system": self.system, "assistant": self.assistant}
        text, waiting = "", ""
        for message in messages:
            role, content = message["role"], message["content"]
            form = forms.get(role, self.user)
            if not form:
                waiting += f"{content}\n\n"
                continue
            if role == "user":
                content, waiting = waiting + content, ""
            text += form.format(content)
        return text + (self.user.format(waiting.strip()) if waiting else "") + self.opening


def _roles(form: str, opening: str, assistant: str = "assistant") -> list[str]:
    return [*(form.replace("ROLE", name) for name in ("system", "user", assistant)), opening]


CHATML = Named(
    "ChatML",
    ("<|im_start|>", "<|im_end|>"),
    *_roles("<|im_start|>ROLE\n{}<|im_end|>\n", "<|im_start|>assistant\n"),
)
NAMED = (  # the first whose signs are all there; ChatML's are also Phi-4's
    Named(
        "Phi-4",
        ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        *_roles("<|im_start|>ROLE<|im_sep|>{}<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    ),
    CHATML,
    Named(
        "Llama 3",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        *_roles(
            "<|start_header_id|>ROLE<|end_header_id|>\n\n{}<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ),
    Named(
        "Gemma",
        ("<start_of_turn>", "<end_of_turn>"),
        "",
        "<start_of_turn>user\n{}<end_of_turn>\n",
        "<start_of_turn>model\n{}<end_of_turn>\n",
        "<start_of_turn>model\n",
    ),
    Named(
        "Gemma 4",
        ("<|turn>", "<turn|>"),
        *_roles("<|turn>ROLE\n{}<turn|>\n", "<|turn>model\n", "model"),
    ),
    Named(
        "gpt-oss",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        "<|start|>developer<|message|># Instructions\n\n{}<|end|>",
        "<|start|>user<|message|>{}<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{}<|end|>",
        "<|start|>assistant",
    ),
    Named(
        "Phi-3",
        ("<|user|>", "<|assistant|>", "<|end|>"),
        *_roles("<|ROLE|>\n{}<|end|>\n", "<|assistant|>\n"),
    ),
    Named("Mistral", ("[INST]", "[/INST]"), "", "[INST] {}[/INST]", " {}</s>", ""),
    Named(
        "DeepSeek",
        ("<｜User｜>", "<｜Assistant｜>"),  # noqa: RUF001  (its own bars)
        "{}\n\n",
        "<｜User｜>{}",  # noqa: RUF001
        "<｜Assistant｜>{}<｜end▁of▁sentence｜>",  # noqa: RUF001
        "<｜Assistant｜>",  # noqa: RUF001
    ),
)


def suitable(knows: Callable[[str], bool]) -> Named:
    """The form that suits a vocabulary; ChatML if none does. `knows`: whether it has a special token."""
    return next((named for named in NAMED if all(map(knows, named.signs))), CHATML)
