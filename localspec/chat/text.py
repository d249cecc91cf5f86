"""From token bytes to text that may be shown: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Decodes UTF-8 incrementally and holds back what may be the beginning of a stop string.

    Bytes that are not UTF-8 become U+FFFD. After `stopped` nothing more comes out. `guessed`: one flag for
    each character of the text that came out last, whether the bytes that completed it were guessed.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self._held_guessed: list[bool] = []
        self.guessed: list[bool] = []
        self.stopped = False

    def feed(self, raw: bytes, guessed: bool = False) -> str:
        """The text that has become certain with `raw`."""
        return self._release(self._decoder.decode(raw), guessed)

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        text = self._release(self._decoder.decode(b"", final=True), False)
        text, self._held = text + self._held, ""
        self.guessed += self._held_guessed
        self._held_guessed = []
        return text

    def _release(self, new: str, guessed: bool) -> str:
        self.guessed = []
        if self.stopped:
            return ""
        text, flags = self._held + new, self._held_guessed + [guessed] * len(new)
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:  # the one that is complete first, however the text is cut into pieces
            self.stopped = True
            size = min(found)[1]
            self._held, self._held_guessed = "", []
        else:
            size = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
            self._held, self._held_guessed = text[size:], flags[size:]
        self.guessed = flags[:size]
        return text[:size]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
