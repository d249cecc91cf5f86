"""Reading for an edit and replacing: what is refused, and what of a file survives."""

from __future__ import annotations

import codecs
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from localspec import config
from localspec.edit import files, writing
from localspec.edit.files import TextFile, encode, read
from localspec.edit.lines import lf, restore
from localspec.edit.writing import replace
from localspec.errors import FileChanged, LocalspecError, NotApplied, UsageError

OLD, NEW = b"old\n", b"the new text\n"

ENCODINGS: list[tuple[str | None, bytes]] = [
    (None, b""),
    (None, codecs.BOM_UTF8),
    (None, codecs.BOM_UTF16_LE),
    (None, codecs.BOM_UTF16_BE),
    ("utf-8", b""),
    ("utf-8-sig", codecs.BOM_UTF8),
    ("utf-16", codecs.BOM_UTF16_BE),
    ("utf-16-le", codecs.BOM_UTF16_LE),
    ("utf-16-be", b""),
    ("latin-1", b""),
    ("cp1252", b""),
    ("utf-32", b""),
]
CODECS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}


def forget_nothing() -> None:
    """Stands where undo would save the old bytes."""


def put(path: Path, new: bytes) -> None:
    replace(files.read_raw(str(path)), new, forget_nothing)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "file.txt"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return path


def only(path: Path) -> bool:
    """Whether nothing else is left in the folder of `path`."""
    return os.listdir(path.parent) == [path.name]


@pytest.fixture
def plain_user(tmp_path: Path) -> Iterator[None]:
    """The test is run by somebody who is not root and whom `tmp_path` belongs to."""
    if os.geteuid():
        yield
        return
    folders = [tmp_path, *tmp_path.parents][:-2]  # all that may be closed to others
    before = {folder: folder.stat() for folder in folders}
    for folder in folders:
        os.chmod(folder, 0o755)
    for root, _, names in os.walk(tmp_path):
        for name in ["", *names]:
            os.chown(os.path.join(root, name), 65534, 65534, follow_symlinks=False)
    os.setegid(65534)
    os.seteuid(65534)
    yield
    os.seteuid(0)
    os.setegid(0)
    for folder, info in before.items():
        os.chmod(folder, stat.S_IMODE(info.st_mode))


# --- text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final", ["", "\n"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", "mixed"])
@pytest.mark.parametrize(("encoding", "bom"), ENCODINGS, ids=str)
def test_round_trip_and_one_word(
    tmp_path: Path, encoding: str | None, bom: bytes, ending: str, final: str
) -> None:
    """A no-op is the identical bytes; one word changes its own characters and no other byte."""
    codec = CODECS.get(bom, encoding or "utf-8")
    ends = ["\r\n", "\n", "\r"] if ending == "mixed" else [ending] * 3
    text = "".join(f"zeile{k} äß{end}" for k, end in enumerate(ends)) + "wort ende" + (final and ends[0])
    path = tmp_path / "f"
    path.write_bytes(bom + text.encode(codec))
    read_text = read(str(path), encoding)
    assert (read_text.text, read_text.bom) == (text, bom)
    assert encode(read_text, restore(read_text.text, lf(read_text.text))) == path.read_bytes()
    for word in ("zeile0", "wort"):
        edited = restore(read_text.text, lf(read_text.text).replace(word, "mot"))
        put(path, encode(read_text, edited))
        assert path.read_bytes() == bom + text.replace(word, "mot").encode(codec)


def test_empty_files_are_texts(tmp_path: Path) -> None:
    for name, raw in (("empty", b""), ("bom", codecs.BOM_UTF8)):
        (tmp_path / name).write_bytes(raw)
        found = read(str(tmp_path / name))
        assert (found.text, encode(found, "")) == ("", raw)


@pytest.mark.parametrize(
    ("raw", "encoding", "says"),
    [
        (b"caf\xe9\n", None, "is not utf-8: byte 0xE9 at 3 (line 1)"),
        (b"1\n2\n\xff", "utf-8", "byte 0xFF at 4 (line 3)"),
        (codecs.BOM_UTF8 + b"a\xff", None, "byte 0xFF at 4"),
        (b"a\0b", None, "is binary"),
        (b"\x7fELF\0\xff\xfe", None, "is binary"),
        ("ab".encode("utf-16-le"), None, "is binary"),
        (codecs.BOM_UTF32_LE + "a".encode("utf-32-le"), None, "UTF-32"),
        (codecs.BOM_UTF16_LE + b"a", None, "is not utf-16-le: byte 0x61 at 2"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8", None, "is not utf-16-le"),
        (codecs.BOM_UTF16_BE + b"\0\0", None, "is binary"),
        (b"ab", "utf-16", "has no UTF-16 BOM"),
        (b"a\x81", "cp1252", "is not cp1252"),
        (b"\x1b(B\x1b(Ba", "iso2022_jp", "would not come out"),
        (b"a", "rot13", "'rot13' is no encoding"),
        (b"a", "nope", "'nope' is no encoding"),
        (b"a", "utf\0", "is no encoding"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, raw: bytes, encoding: str | None, says: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(raw)
    with pytest.raises(UsageError) as error:
        read(str(path), encoding)
    assert says in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("encoding", "text", "says"),
    [
        ("latin-1", "a\nb→\n", "'→' (U+2192) in line 2, not in iso8859-1"),
        ("utf-8", "a\ud800", "U+D800"),
        ("utf-8", "a\0", "NUL"),
        ("utf-8", "\ufeffa", "BOM"),
    ],
)
def test_text_that_the_encoding_cannot_hold(tmp_path: Path, encoding: str, text: str, says: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a\n")
    with pytest.raises(NotApplied) as error:
        encode(read(str(path), encoding), text)
    assert says in error.value.message
    assert error.value.exit_status == 5


def test_size_is_said_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as stream:
        stream.truncate(50 * 2**20)
    with pytest.raises(UsageError, match=r"50\.0 MiB, at most 10\.0"):
        read(str(path))
    path.write_bytes(b"x" * (5 * 2**20))  # a single line
    assert len(read(str(path)).text) == 5 * 2**20
    with pytest.raises(UsageError):
        read(str(path), limit_bytes=5 * 2**20 - 1)


# --- kinds of files -----------------------------------------------------------------------------------------


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "to_pipe").symlink_to("pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "text").write_text("a")
    cases = {
        "pipe": "is a named pipe",
        "to_pipe": "is a named pipe",
        "socket": "is a socket",
        ".": "is a folder",
        "/dev/null": "is a device",
        "dangling": "is a link to nowhere, which does not exist",
        "loop": "leads back to itself",
        "missing": "there is no file",
        "text/more": "Not a directory",
        "nul\0": "null",
        "x" * 300: "too long",
    }
    for name, says in cases.items():
        with pytest.raises(UsageError) as error:
            read(os.path.join(tmp_path, name))
        assert says in error.value.message, name
        assert error.value.hint
    with pytest.raises(UsageError, match="'' is a folder"):
        read("")


def test_a_pipe_that_takes_the_place_of_the_file_is_not_waited_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = os.lstat(file)

    def look_and_swap(_: object) -> os.stat_result:
        file.unlink()
        os.mkfifo(file)
        return looked

    monkeypatch.setattr(os, "lstat", look_and_swap)
    with pytest.raises(UsageError, match="named pipe"):
        files.read_raw(str(file))


def test_read_only_files_are_refused_for_everybody(file: Path) -> None:
    file.chmod(0o444)
    with pytest.raises(UsageError, match="read-only"):
        read(str(file))


def test_what_this_user_may_not_do_is_refused(file: Path, plain_user: None) -> None:
    file.chmod(0o200)
    with pytest.raises(UsageError, match="Permission denied"):
        read(str(file))
    file.chmod(0o644)
    file.parent.chmod(0o555)
    with pytest.raises(UsageError, match=r"the folder .* is read-only"):
        read(str(file))
    file.parent.chmod(0o755)
    assert read(str(file)).text == "old\n"


@pytest.mark.parametrize("mode", [0o755, 0o644, 0o600, 0o666, 0o640, 0o4755, 0o2755])
def test_mode_is_kept(file: Path, mode: int) -> None:
    file.chmod(mode)
    put(file, NEW)
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert (file.read_bytes(), only(file)) == (NEW, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_owner_is_kept(file: Path) -> None:
    os.chown(file, 1234, 4321)
    put(file, NEW)
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)


def test_an_owner_that_cannot_be_kept_gives_nobody_more(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    file.chmod(0o6674)
    monkeypatch.setattr(os, "fchown", refused)
    put(file, NEW)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_extended_attributes_are_kept(file: Path) -> None:
    try:
        os.setxattr(file, "user.note", b"mine")
    except (OSError, AttributeError):
        pytest.skip("none here")
    put(file, NEW)
    assert os.getxattr(file, "user.note") == b"mine"


def test_the_link_stays_and_its_target_is_replaced(file: Path, tmp_path: Path) -> None:
    link, chain = tmp_path / "link", tmp_path / "chain"
    link.symlink_to("folder/file.txt")
    chain.symlink_to(link)
    put(chain, NEW)
    assert (os.readlink(chain), os.readlink(link)) == (str(link), "folder/file.txt")
    assert (file.read_bytes(), file.is_symlink(), only(file)) == (NEW, False, True)


def test_hard_links_stay_one_file(file: Path) -> None:
    other = file.with_name("other")
    os.link(file, other)
    for new in (NEW, b"", b"x" * 100_000, OLD):
        put(file, new)
        assert file.samefile(other)
        assert other.read_bytes() == new
    assert sorted(os.listdir(file.parent)) == ["file.txt", "other"]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n\x1b[0m")
    Path(name).write_bytes(OLD)
    put(Path(name), NEW)
    assert Path(name).read_bytes() == NEW


def test_relative_names(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    put(Path(file.name), NEW)
    assert file.read_bytes() == NEW


# --- only what was read is replaced -------------------------------------------------------------------------


def _write(path: Path) -> None:
    path.write_bytes(b"somebody else's\n")


def _delete(path: Path) -> None:
    path.unlink()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _other_link(path: Path) -> None:
    target = path.with_name("same bytes")
    target.write_bytes(OLD)
    path.unlink()
    path.symlink_to(target)


def _second_name(path: Path) -> None:
    os.link(path, path.with_name("second"))


@pytest.mark.parametrize("change", [_write, _delete, _pipe, _other_link, _second_name])
@pytest.mark.parametrize("late", [False, True])
def test_a_file_that_changed_meanwhile_is_left_alone(
    file: Path, change: Callable[[Path], None], late: bool
) -> None:
    """Before replacing began, or while the old bytes were being saved."""
    read_before = read(str(file))
    saved: list[bool] = []

    def remember() -> None:
        saved.append(True)
        if late:
            change(file)

    if not late:
        change(file)
    with pytest.raises(FileChanged) as error:
        replace(read_before, NEW, remember)
    assert (error.value.exit_status, saved) == (6, [True] * late)
    assert not [name for name in os.listdir(file.parent) if name.endswith(".tmp")]
    if file.is_file():
        assert file.read_bytes() in (OLD, b"somebody else's\n")


def test_a_file_that_changes_while_the_new_one_is_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fchmod = os.fchmod

    def slowly(fd: int, mode: int) -> None:
        fchmod(fd, mode)
        _write(file)

    monkeypatch.setattr(os, "fchmod", slowly)
    with pytest.raises(FileChanged):
        put(file, NEW)
    assert (file.read_bytes(), only(file)) == (b"somebody else's\n", True)


def test_same_bytes_with_a_new_time_are_no_change(file: Path) -> None:
    read_before = read(str(file))
    os.utime(file, (1, 1))
    replace(read_before, NEW, forget_nothing)
    assert file.read_bytes() == NEW


def test_nothing_is_written_if_the_old_bytes_cannot_be_saved(file: Path) -> None:
    def remember() -> None:
        raise LocalspecError("no")

    with pytest.raises(LocalspecError, match="no"):
        replace(read(str(file)), NEW, remember)
    assert (file.read_bytes(), only(file)) == (OLD, True)


def test_a_lock_held_elsewhere_is_not_waited_for_long(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LOCK_SECONDS", 0.0)
    put(file, OLD)
    (lock_file,) = (config.state_folder() / "locks").iterdir()
    with FileLock(lock_file), pytest.raises(FileChanged, match="another localspec"):
        put(file, NEW)
    assert file.read_bytes() == OLD
    put(file, NEW)
    assert file.read_bytes() == NEW


def test_state_folder_that_cannot_be_made(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(file))
    with pytest.raises(LocalspecError, match=r"cannot lock .*Not a directory"):
        put(file, NEW)
    assert file.read_bytes() == OLD


def test_only_the_user_sees_the_state(file: Path) -> None:
    (config.state_folder() / "locks").mkdir(parents=True, mode=0o755)
    put(file, NEW)
    assert stat.S_IMODE((config.state_folder() / "locks").stat().st_mode) == 0o700


def test_the_temporary_file_is_secret_until_it_has_the_mode(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    pwrite = os.pwrite

    def noted(fd: int, data: bytes, place: int) -> int:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return pwrite(fd, data[:3], place)  # a short write, too

    monkeypatch.setattr(os, "pwrite", noted)
    put(file, NEW)
    assert (set(modes), file.read_bytes()) == ({0o600}, NEW)


def test_what_dead_processes_left_goes_and_what_live_ones_write_stays(file: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = f".localspec-{child.pid}-{'0' * 16}.tmp"
    earlier = f".localspec-{os.getpid()}-{'1' * 16}.tmp"
    kept = [
        f".localspec-{os.getppid()}-{'2' * 16}.tmp",
        f".localspec-1-{'3' * 16}.tmp",
        f".localspec-{child.pid}-notes.tmp",
        "file.tmp",
    ]
    for name in (dead, earlier, *kept):
        file.with_name(name).touch()
    put(file, NEW)
    assert sorted(os.listdir(file.parent)) == sorted([file.name, *kept])


def test_ctrl_c_waits_for_the_write(file: Path) -> None:
    def remember() -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        replace(read(str(file)), NEW, remember)
    assert file.read_bytes() == NEW
    assert signal.getsignal(signal.SIGINT) is before
    put(file, OLD)  # the lock is free


def test_other_threads_can_write_too(file: Path) -> None:
    thread = threading.Thread(target=put, args=(file, NEW))
    thread.start()
    thread.join()
    assert file.read_bytes() == NEW


def test_folders_that_cannot_be_flushed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems refuse to, which is no error; one that tries and fails is."""
    fsync, refusal = os.fsync, OSError(22, "Invalid argument")

    def on_files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise refusal
        fsync(fd)

    monkeypatch.setattr(os, "fsync", on_files_only)
    put(file, NEW)
    refusal = OSError(5, "Input/output error")
    with pytest.raises(LocalspecError, match=r"is written, but .*Input/output error"):
        put(file, OLD)
    assert file.read_bytes() == OLD


def test_what_is_read_does_not_show_in_reprs(file: Path) -> None:
    file.write_text("my secret")
    found = read(str(file))
    assert isinstance(found, TextFile)
    assert "secret" not in repr(found)
