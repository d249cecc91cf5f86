"""Line endings: a model sees and writes \\n, the file keeps its own, each line for itself.

A line ends at \\n, \\r\\n or \\r and nowhere else: form feeds, U+2028 and what else str.splitlines takes for
an end are text. Pure: strings in, strings out; knows neither files nor encodings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.edit.matching import matches

_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
_ENDS = "\r\n"


def split(text: str) -> list[str]:
    """The lines of `text`, each with its ending; the last may have none."""
    return _LINE.findall(text)


def lf(text: str) -> str:
    """`text` with every line ending as \\n: what a model sees."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def restore(old: str, new_lf: str, final_newline: bool | None = None) -> str:
    """The text `new_lf`, whose lines end in \\n, with the line endings of `old`.

    A line that stays keeps its ending, a new one takes that of the line in whose place it stands, else of its
    neighbour. `final_newline`: whether the last line is to end; None: as in `old`, unless nothing else
    differs. Example: restore("a\\r\\nb\\n", "A\\nb\\nc\\n") is "A\\r\\nb\\nc\\n".
    """
    old_lf, new_lf = lf(old), lf(new_lf)
    if not new_lf:
        return ""
    if final_newline is None:
        final_newline = _final_newline(old_lf, new_lf)
    new_lf = new_lf.removesuffix("\n") + "\n" * final_newline
    if new_lf == old_lf:
        return old
    endings = _endings(old)
    if len(endings) > 1 and new_lf:
        return _mixed(split(old), split(new_lf))
    return new_lf.replace("\n", endings[0]) if endings else new_lf


def _final_newline(old_lf: str, new_lf: str) -> bool:
    only_difference = old_lf.removesuffix("\n") == new_lf.removesuffix("\n")
    return (new_lf if only_difference or not old_lf else old_lf).endswith("\n")


def _endings(text: str) -> list[str]:
    """The kinds of line endings in `text`."""
    pairs = text.count("\r\n")
    counts = {"\r\n": pairs, "\n": text.count("\n") - pairs, "\r": text.count("\r") - pairs}
    return [ending for ending, count in counts.items() if count]


def _mixed(old: Sequence[str], new: Sequence[str]) -> str:
    """The lines of `new` with endings from `old`, whose lines do not all end alike."""
    before, after = ([line.rstrip(_ENDS) for line in lines] for lines in (old, new))
    endings: list[str] = []
    place = 0
    kept = ((i + k, j + k) for i, j, length in matches(before, after) for k in range(length))
    for i, j in (*kept, (len(before), len(after))):
        replaced = [old[k][len(before[k]) :] for k in range(place, i)]
        inserted = j - len(endings)
        endings += (replaced + [""] * inserted)[:inserted]
        endings += [line[len(before[i]) :] for line in old[i : i + 1]]
        place = i + 1
    last = next((ending for ending in endings if ending), "\n")
    for j, text in enumerate(after):
        ending = endings[j] or last
        if j and not text and (last, ending) == ("\r", "\n"):
            ending = "\r"  # an empty line must not become one with the end before it
        endings[j] = last = ending
    whole = "".join(text + ending for text, ending in zip(after, endings, strict=False))
    return whole if new[-1].endswith("\n") else whole[: -len(last)]
