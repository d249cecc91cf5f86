"""TextStream: whole characters only and nothing of a stop string, however the bytes are cut into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.text import TextStream

LETTERS = "abé🙂"  # 1, 1, 2 and 4 bytes
BROKEN = (b"\xff", b"\xc3", b"\xf0\x9f")  # no character at all, and the beginnings of two
PIECES = (*(letter.encode() for letter in LETTERS), *BROKEN)
stop_lists = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)
byte_strings = st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join)
cut_lists = st.lists(st.integers(0, 40), max_size=12)


def cut(raw: bytes, places: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(min(place, len(raw)) for place in places), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(borders)]


def expected(raw: bytes, stops: Sequence[str]) -> tuple[str, bool]:
    """The whole text up to where the stop string begins that is complete first; whether there is one."""
    text = raw.decode("utf-8", errors="replace")
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return text[: min(begins)], True
    return text, False


def streamed(pieces: Iterable[bytes], stops: Sequence[str]) -> tuple[str, bool]:
    stream = TextStream(stops)
    text = "".join([stream.feed(piece) for piece in pieces])
    return text + stream.finish(), stream.stopped


@given(byte_strings, stop_lists, cut_lists)
@settings(max_examples=800, deadline=None)
def test_pieces_make_the_whole_text(raw: bytes, stops: list[str], places: list[int]) -> None:
    assert streamed(cut(raw, places), stops) == expected(raw, stops)


@given(st.text(LETTERS, max_size=20), stop_lists, cut_lists)
@settings(max_examples=300, deadline=None)
def test_only_the_beginning_of_a_stop_is_held_back(text: str, stops: list[str], places: list[int]) -> None:
    stream, fed, shown = TextStream(stops), b"", ""
    for piece in cut(text.encode(), places):
        fed += piece
        shown += stream.feed(piece)
        if stream.stopped:
            return
        whole = fed.decode("utf-8", errors="ignore")  # without a last character that is not complete
        held = whole[len(shown) :]
        assert whole.startswith(shown)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


marked_pieces = st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), max_size=20)


@given(marked_pieces, stop_lists)
@settings(max_examples=300, deadline=None)
def test_each_character_is_marked_as_the_bytes_that_completed_it(
    pieces: list[tuple[bytes, bool]], stops: list[str]
) -> None:
    """Byte by byte, and in whole pieces: held back for a stop string or not."""
    bytewise, whole = TextStream(stops), TextStream(stops)
    marks: dict[TextStream, list[tuple[str, bool]]] = {bytewise: [], whole: []}
    for raw, guessed in pieces:
        for part in [bytes([byte]) for byte in raw]:
            marks[bytewise] += zip(bytewise.feed(part, guessed), bytewise.guessed, strict=True)
        marks[whole] += zip(whole.feed(raw, guessed), whole.guessed, strict=True)
    for stream in (bytewise, whole):
        marks[stream] += zip(stream.finish(), stream.guessed, strict=True)
    assert marks[bytewise] == marks[whole]
    assert "".join(char for char, _ in marks[whole]) == expected(b"".join(raw for raw, _ in pieces), stops)[0]


def test_marks_of_what_was_held_back_come_out_with_it() -> None:
    stream = TextStream(["END"])
    assert (stream.feed("aé".encode()[:2], True), stream.guessed) == ("a", [True])
    assert (stream.feed("é".encode()[1:] + b"E"), stream.guessed) == ("é", [False])
    assert (stream.feed(b"N", True), stream.guessed) == ("", [])
    assert (stream.feed(b"d"), stream.guessed) == ("ENd", [False, True, False])
    assert (stream.feed(b"xE", True), stream.finish(), stream.guessed) == ("x", "E", [True])
    assert (TextStream().finish(), TextStream().guessed) == ("", [])


def test_a_character_comes_out_with_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.feed(bytes([byte])) for byte in "é🙂!".encode()] == ["", "é", "", "", "", "🙂", "!"]
    assert stream.finish() == ""


def test_only_what_is_not_utf8_is_replaced() -> None:
    stream = TextStream()
    raw = "è".encode() + b"\xff" + "é".encode() + b"\xe2\x82" + b"c" + b"\xf0\x9f\x99"
    shown = [stream.feed(bytes([byte])) for byte in raw]
    assert "".join(shown) == "è\ufffdé\ufffdc"  # an incomplete character is one mistake, not two
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("END and more", ["END"], ""),  # at the very beginning
        ("one ENDtwo END", ["END"], "one "),  # the first of two
        ("aaab", ["aab"], "a"),  # the stop begins again inside its own beginning
        ("ababac", ["abac"], "ab"),
        ("one\n\nUser: hi", ["\nUser:", "\n\nUser:"], "one"),  # both complete at once: the longer one
        ("xabcd", ["abcd", "c"], "xab"),  # complete first, though the other begins first
        ("no such thing: EN", ["END"], "no such thing: EN"),  # held back, and not lost
        ("all of it", ["", "?"], "all of it"),  # an empty stop stops nothing
        ("für 🙂 und", ["🙂"], "für "),
    ],
)
def test_where_the_answer_ends(text: str, stops: list[str], shown: str) -> None:
    raw = text.encode()
    for size in (1, 2, 3, len(raw)):
        assert streamed(cut(raw, range(size, len(raw), size)), stops)[0] == shown


def test_nothing_comes_after_the_stop() -> None:
    stream = TextStream(["."])
    assert stream.feed(b"One. Two") == "One"
    assert stream.stopped
    assert (stream.feed(b" Three"), stream.finish()) == ("", "")
