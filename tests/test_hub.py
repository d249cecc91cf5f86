"""Downloads and remote headers against a Hub on loopback that drops, lies, refuses, stalls and changes."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hub_server import COMMIT, Fault, HubServer, wait_until

from localspec import config
from localspec.errors import DownloadError, ExitStatus, LocalspecError, ModelNotFound, UsageError
from localspec.models import download, hub

FILE = "Tiny-Q8_0.gguf"
CONTENT = b"GGUF" + random.Random(1).randbytes(300_000)
OTHER = b"GGUF" + random.Random(2).randbytes(len(CONTENT) - 4)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer()
    server.add(FILE, CONTENT)
    point_at(server, tmp_path, monkeypatch)
    yield server
    server.close()


@pytest.fixture(scope="module", autouse=True)
def _one_client() -> Iterator[None]:
    """The library keeps one for the process; a new one costs 0.1 s."""
    yield
    hub.huggingface_hub.close_session()


def point_at(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT and the other variables do at import, for a library that is imported already."""
    values = {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "hf" / "hub"),
        "HF_TOKEN_PATH": str(tmp_path / "hf" / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DOWNLOAD_TIMEOUT": 2,
    }
    for name, value in values.items():
        monkeypatch.setattr(hub.constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Naps(list[float]):
    """A sleep that does not."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def pull(wanted: str | None = None, naps: Naps | None = None) -> Path:
    sleep = Naps() if naps is None else naps
    return hub.fetch(hub.look_up("org/repo", wanted, sleep=sleep), sleep=sleep)


def here() -> dict[str, bytes]:
    """Every file of the repository's folder among our models."""
    folder = config.models_folder() / "org" / "repo"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


def part_name(content: bytes = CONTENT) -> str:
    return f"{FILE}.{hashlib.sha256(content).hexdigest()[:12]}.part"


# --- what is there ---


def test_look_up_says_what_a_download_would_bring(server: HubServer) -> None:
    server.add("Tiny-Q4_K_M.gguf", b"GGUF" + bytes(100))
    offer = hub.look_up("org/repo", "q8_0")
    assert offer.files == (hub.HubFile(FILE, len(CONTENT), hashlib.sha256(CONTENT).hexdigest()),)
    assert (offer.repo, offer.revision, offer.licence, offer.gated) == (
        "org/repo",
        COMMIT,
        "apache-2.0",
        False,
    )
    assert offer.bytes_total == hub.bytes_missing(offer) == len(CONTENT)
    assert not server.asked_for_files
    assert not here()


def test_a_licence_of_another_kind_is_named(server: HubServer) -> None:
    server.info = {"cardData": {"license": "other", "license_name": "lfm1.0"}}
    assert hub.look_up("org/repo").licence == "lfm1.0"
    server.info = {"cardData": None}
    assert hub.look_up("org/repo").licence == ""


def test_a_listing_cannot_name_a_file_outside(server: HubServer) -> None:
    server.files.clear()
    server.listed.clear()
    for name in ("../../evil-Q8_0.gguf", "/tmp/evil-Q8_0.gguf", "a\\..\\evil-Q8_0.gguf", "~/evil-Q8_0.gguf"):
        server.add(name, CONTENT)
    with pytest.raises(ModelNotFound, match="no file for q8_0"):
        hub.look_up("org/repo", "q8_0")


# --- whole and right ---


def test_a_download_is_the_file_and_nothing_else(server: HubServer) -> None:
    heard: list[tuple[int, int]] = []
    offer = hub.look_up("org/repo")
    path = hub.fetch(offer, on_bytes=lambda done, total: heard.append((done, total)))
    assert path == config.models_folder() / "org" / "repo" / FILE == offer.targets[0]
    assert here() == {FILE: CONTENT}
    assert heard == sorted(heard)
    assert heard[-1] == (len(CONTENT), len(CONTENT))
    assert hub.bytes_missing(offer) == 0


def test_nothing_but_the_model_is_asked_for(server: HubServer) -> None:
    pull()
    assert [asked.path.split("?")[0] for asked in server.asked] == [
        "/api/models/org/repo",
        f"/org/repo/resolve/{COMMIT}/{FILE}",
    ]
    assert all("agent" not in asked.headers["user-agent"] for asked in server.asked)
    assert server.asked[-1].headers["accept-encoding"] == "identity"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_what_is_here_is_not_fetched_again(server: HubServer) -> None:
    pull()
    asked = len(server.asked_for_files)
    assert pull().read_bytes() == CONTENT
    assert len(server.asked_for_files) == asked


def test_all_shards_come_and_the_first_is_loaded(server: HubServer) -> None:
    shards = {f"Q4/big-Q4_0-0000{i}-of-00003.gguf": bytes([i]) * 1000 for i in (1, 2, 3)}
    for name, content in shards.items():
        server.add(name, content)
    server.faults.extend([Fault(), *[Fault(drop_after=0)] * 9])
    with pytest.raises(DownloadError):
        pull("q4_0")
    first, second = list(shards)[:2]
    assert here().pop(first) == shards[first]
    assert second not in here()
    server.faults.clear()
    heard: list[int] = []
    path = hub.fetch(hub.look_up("org/repo", "q4_0"), on_bytes=lambda done, _: heard.append(done))
    assert path == config.models_folder() / "org" / "repo" / first
    assert here() == shards
    assert heard == sorted(heard)
    assert heard[-1] == 3000
    assert sum(first in asked.path for asked in server.asked_for_files) == 1


def test_a_set_with_a_hole_is_refused(server: HubServer) -> None:
    server.add("big-Q4_0-00001-of-00002.gguf", b"GGUF")
    with pytest.raises(ModelNotFound, match="lacks 1 shards"):
        pull("q4_0")
    assert not server.asked_for_files


# --- broken connections ---


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_a_drop_is_resumed_in_the_same_run(server: HubServer, percent: int) -> None:
    kept = len(CONTENT) * percent // 100
    server.faults.append(Fault(drop_after=kept))
    naps = Naps()
    assert pull(naps=naps).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={kept}-"]
    assert server.asked_for_files[1].headers["if-range"] == server.etags[FILE]
    assert naps == [1.0]


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_a_drop_is_resumed_by_the_next_run(server: HubServer, percent: int) -> None:
    kept = len(CONTENT) * percent // 100
    server.faults.extend([Fault(drop_after=kept), *[Fault(drop_after=0)] * 9])
    naps = Naps()
    with pytest.raises(DownloadError, match=r"connection to 127\.0\.0\.1") as caught:
        pull(naps=naps)
    assert "goes on where it stopped" in caught.value.hint
    assert caught.value.exit_status == ExitStatus.MODEL_MISSING == 3
    assert naps == list(download.PAUSES)
    assert here() == {part_name(): CONTENT[:kept]}
    server.faults.clear()
    server.asked.clear()
    assert hub.bytes_missing(hub.look_up("org/repo")) == len(CONTENT) - kept
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [f"bytes={kept}-"]
    assert list(here()) == [FILE]


def test_every_new_byte_renews_the_patience(server: HubServer) -> None:
    server.faults.extend([Fault(drop_after=1000)] * 20)
    naps = Naps()
    assert pull(naps=naps).read_bytes() == CONTENT
    assert naps == [1.0] * 20


def test_an_end_without_a_length_is_a_drop_too(server: HubServer) -> None:
    server.faults.append(Fault(drop_after=1000, without_length=True))
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]


def test_a_server_that_sends_nothing_is_left(server: HubServer) -> None:
    server.faults.extend([Fault(drop_after=0, without_length=True)] * 9)
    with pytest.raises(DownloadError, match=f"broke off at 0 of {len(CONTENT)} bytes"):
        pull()
    assert len(server.asked_for_files) == len(download.PAUSES) + 1


def test_a_stalled_server_is_left(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    server.faults.append(Fault(drop_after=1000, stall=True))
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]


def test_ctrl_c_leaves_only_a_part_that_resumes(server: HubServer) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch(hub.look_up("org/repo"), on_bytes=interrupt)
    [(name, content)] = here().items()
    assert name == part_name()
    assert CONTENT.startswith(content)
    assert len(content) > 100_000
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={len(content)}-"]


def test_a_full_disk_keeps_the_part(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            if self.tell() > 100_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data[:30_000])

    with monkeypatch.context() as patch:
        patch.setattr(download, "FileIO", Full)
        with pytest.raises(DownloadError, match="no room for") as caught:
            pull()
    assert "free some space" in caught.value.hint
    assert list(here()) == [part_name()]
    assert pull().read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_named(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot write .*home") as caught:
        pull()
    assert "LOCALSPEC_HOME" in caught.value.hint


def test_two_downloads_of_one_file_fetch_it_once(server: HubServer) -> None:
    offer, started, go_on = hub.look_up("org/repo"), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go_on.wait(5)

    server.faults.append(Fault(first=hold))
    notes: list[str] = []
    first = threading.Thread(target=hub.fetch, args=(offer,))
    second = threading.Thread(target=hub.fetch, args=(offer,), kwargs={"note": notes.append})
    first.start()
    assert started.wait(5)
    second.start()
    wait_until(lambda: bool(notes))
    assert "another localspec" in notes[0]
    go_on.set()
    first.join(5)
    second.join(5)
    assert here() == {FILE: CONTENT}
    assert len(server.asked_for_files) == 1


# --- a server that lies, or changes its mind ---


def test_a_wrong_hash_is_deleted(server: HubServer) -> None:
    server.files[FILE] = OTHER
    with pytest.raises(DownloadError, match="not what the Hub lists: its sha256") as caught:
        pull()
    assert caught.value.exit_status == 3
    assert "HF_ENDPOINT" in caught.value.hint
    assert here() == {}
    assert len(server.asked_for_files) == 1


def test_a_wrong_size_is_not_fetched(server: HubServer) -> None:
    server.files[FILE] = CONTENT + b"more"
    with pytest.raises(DownloadError, match=f"{len(CONTENT) + 4} bytes, not {len(CONTENT)}"):
        pull()
    assert FILE not in here()


def test_a_login_page_does_not_cost_the_part(server: HubServer) -> None:
    server.faults.extend([Fault(drop_after=1000), Fault(ignore_range=True, body=b"<html>")])
    with pytest.raises(DownloadError, match="6 bytes, not"):
        pull()
    assert here() == {part_name(): CONTENT[:1000]}


def test_an_endless_body_is_cut_and_deleted(server: HubServer) -> None:
    server.faults.append(Fault(body=CONTENT + b"more", without_length=True))
    with pytest.raises(DownloadError, match="more than"):
        pull()
    assert here() == {}


def test_a_file_that_changed_between_ranges_starts_anew(server: HubServer) -> None:
    """The first answer is of an old version, the listing and the second of the new one: If-Range tells."""

    def change() -> None:
        server.files[FILE], server.etags[FILE] = CONTENT, '"new"'

    server.files[FILE], server.etags[FILE] = OTHER, '"old"'
    server.faults.extend([Fault(drop_after=1000), Fault(first=change)])
    assert pull().read_bytes() == CONTENT
    assert [asked.headers.get("if-range") for asked in server.asked_for_files] == [None, '"old"']


def test_a_server_without_if_range_is_told_by_its_etag(server: HubServer) -> None:
    """The second answer has the range asked for, but of another version: its bytes are not used."""
    server.files[FILE], server.etags[FILE] = OTHER, 'W/"old"'

    def change() -> None:
        server.files[FILE], server.etags[FILE] = CONTENT, 'W/"new"'

    server.faults.extend([Fault(drop_after=1000), Fault(first=change)])
    heard: list[int] = []
    offer = hub.look_up("org/repo")
    path = hub.fetch(offer, on_bytes=lambda done, _: heard.append(done), sleep=Naps())
    assert path.read_bytes() == CONTENT
    assert len(CONTENT) not in heard[:-2]
    assert server.ranges == [None, "bytes=1000-", None]
    assert all("if-range" not in asked.headers for asked in server.asked_for_files)


def test_without_any_etag_the_hash_tells_and_a_stitched_file_is_fetched_once_more(server: HubServer) -> None:
    def change() -> None:
        server.files[FILE] = CONTENT

    server.files[FILE], server.etags[FILE] = OTHER, ""
    server.faults.extend([Fault(drop_after=1000), Fault(first=change)])
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", None]


def test_a_damaged_part_of_an_earlier_run_is_fetched_once_more(server: HubServer) -> None:
    part = config.models_folder() / "org" / "repo" / part_name()
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    assert pull().read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-", None]


@pytest.mark.parametrize("left", [CONTENT, OTHER, CONTENT + b"x"])
def test_a_part_that_is_whole_or_wrong_or_too_long(server: HubServer, left: bytes) -> None:
    part = config.models_folder() / "org" / "repo" / part_name()
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assert pull().read_bytes() == CONTENT
    assert server.ranges == ([] if left == CONTENT else [None])


def test_the_part_of_an_outdated_version_is_removed(server: HubServer) -> None:
    folder = config.models_folder() / "org" / "repo"
    folder.mkdir(parents=True)
    (folder / part_name(OTHER)).write_bytes(OTHER[:1000])
    (folder / f"Another.gguf.{'0' * 12}.part").write_bytes(b"kept")
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [None]
    assert sorted(here()) == [f"Another.gguf.{'0' * 12}.part", FILE]


def test_a_server_that_ignores_ranges_starts_anew(server: HubServer) -> None:
    server.faults.extend([Fault(drop_after=1000), Fault(ignore_range=True)])
    assert pull().read_bytes() == CONTENT


@pytest.mark.parametrize("span", ["bytes 0-300003/300004", "bytes 999-300003/300004", "nonsense"])
def test_another_range_than_asked_for_is_not_used(server: HubServer, span: str) -> None:
    server.faults.extend([Fault(drop_after=1000), Fault(headers={"Content-Range": span}, body=CONTENT)])
    assert pull().read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", None]


def test_a_server_that_never_gets_it_right_is_left(server: HubServer) -> None:
    server.faults.extend([Fault(status=416)] * 9)
    with pytest.raises(DownloadError, match="never sends"):
        pull()
    assert len(server.asked_for_files) == download.RESTARTS + 1


# --- refusals ---


REFUSALS = [
    (Fault(status=401), "no public repository org/repo", "spelling.*HF_TOKEN"),
    (Fault(status=401, headers={"X-Error-Code": "GatedRepo"}), "gated", "accept the terms at .*/org/repo"),
    (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), "gated", "accept the terms"),
    (Fault(status=403), r"refuses org/repo \(403\)", "HF_TOKEN"),
    (Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}), "no public repository", "spelling"),
    (Fault(status=404, headers={"X-Error-Code": "EntryNotFound"}), f"has no file {FILE}", "run the same"),
    (Fault(status=404), "has no file|no public repository", "run the same|spelling"),
    (Fault(status=429), r"limits requests \(429\)", "wait some minutes.*HF_TOKEN"),
    (Fault(status=429, headers={"Retry-After": "900"}), "limits requests", "wait 900 seconds"),
    (Fault(status=500), r"in trouble \(500\)", "later"),
    (Fault(status=503), r"in trouble \(503\)", "later"),
    (Fault(status=418), r"refuses org/repo \(418\)", "HF_TOKEN"),
]


def refused(queue: deque[Fault], fault: Fault, message: str, hint: str) -> None:
    queue.extend([fault] * 9)
    with pytest.raises(DownloadError, match=message) as caught:
        pull()
    assert re.search(hint, caught.value.hint)
    assert caught.value.exit_status == 3
    assert "\n" not in caught.value.message + caught.value.hint
    assert FILE not in here()


@pytest.mark.parametrize(("fault", "message", "hint"), REFUSALS)
def test_a_refusal_of_a_file_says_what_to_do(
    server: HubServer, fault: Fault, message: str, hint: str
) -> None:
    refused(server.faults, fault, message, hint)


@pytest.mark.parametrize(
    ("fault", "message", "hint"), [r for r in REFUSALS if "EntryNotFound" not in r[0].headers.values()]
)
def test_a_refusal_of_a_repository_says_what_to_do(
    server: HubServer, fault: Fault, message: str, hint: str
) -> None:
    refused(server.api_faults, fault, message, hint)


def test_a_token_that_does_not_help_is_said(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.api_faults.append(Fault(status=401))
    with pytest.raises(DownloadError, match="your token") as caught:
        pull()
    assert "HF_TOKEN is valid" in caught.value.hint


def test_a_busy_server_is_waited_for_briefly(server: HubServer) -> None:
    server.api_faults.append(Fault(status=429, headers={"RateLimit": '"api";r=0;t=7'}))
    server.faults.extend([Fault(status=429, headers={"Retry-After": "5"}), Fault(status=500)])
    naps = Naps()
    assert pull(naps=naps).read_bytes() == CONTENT
    assert naps == [7.0, 5.0, 2.0]


def test_a_long_wait_is_not_waited_for(server: HubServer) -> None:
    server.faults.append(Fault(status=429, headers={"Retry-After": "31"}))
    naps = Naps()
    with pytest.raises(DownloadError, match="429"):
        pull(naps=naps)
    assert naps == []


def test_a_gated_repository_needs_a_token_before_a_byte_is_fetched(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.info = {"gated": "manual"}
    with pytest.raises(DownloadError, match="gated") as caught:
        pull()
    assert f"{server.url}/org/repo" in caught.value.hint
    assert not server.asked_for_files
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hub.look_up("org/repo").gated
    assert pull().read_bytes() == CONTENT
    assert server.asked[-1].headers["authorization"] == "Bearer hf_secret"


def test_a_disabled_repository(server: HubServer) -> None:
    server.info = {"disabled": True}
    with pytest.raises(DownloadError, match="disabled"):
        pull()


def test_a_renamed_repository_is_named(server: HubServer) -> None:
    server.repo = "neworg/newname"
    server.api_faults.append(Fault(status=307, headers={"Location": "/api/models/neworg/newname?blobs=True"}))
    with pytest.raises(DownloadError, match="org/repo is now called neworg/newname") as caught:
        pull()
    assert "neworg/newname" in caught.value.hint
    assert not server.asked_for_files


def test_case_is_not_a_rename(server: HubServer) -> None:
    server.info = {"id": "Org/Repo"}
    assert hub.look_up("org/repo").repo == "Org/Repo"


@pytest.mark.parametrize(
    "answer", [b"<html>log in</html>", b"[]", b"{}", b'{"id": "../../etc", "siblings": []}']
)
def test_something_that_is_no_hub(server: HubServer, answer: bytes) -> None:
    server.api_faults.append(Fault(body=answer))
    with pytest.raises(DownloadError, match="does not answer as the Hub") as caught:
        pull()
    assert "HF_ENDPOINT" in caught.value.hint


def test_no_network_is_said_at_once(server: HubServer) -> None:
    server.close()
    naps = Naps()
    with pytest.raises(DownloadError, match=r"connection to 127\.0\.0\.1.* failed") as caught:
        pull(naps=naps)
    assert "check the network" in caught.value.hint
    assert naps == []


def test_a_redirect_keeps_the_range_and_loses_the_token(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.redirect_to = elsewhere = HubServer()
    try:
        elsewhere.add(FILE, CONTENT)
        elsewhere.faults.append(Fault(drop_after=1000))
        assert pull().read_bytes() == CONTENT
        assert elsewhere.ranges == [None, "bytes=1000-"]
        assert all("authorization" not in asked.headers for asked in elsewhere.asked)
        assert server.asked[-1].headers["authorization"] == "Bearer hf_secret"
    finally:
        elsewhere.close()


def test_room_is_checked_before_a_byte_is_fetched(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = hub.look_up("org/repo")
    usage = hub.shutil.disk_usage("/")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT) - 1))
    with pytest.raises(DownloadError, match="GiB more") as caught:
        hub.fetch(offer)
    assert "LOCALSPEC_HOME" in caught.value.hint
    assert not server.asked_for_files
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT)))
    hub.fetch(offer)


@pytest.mark.parametrize(
    ("lfs", "message"),
    [
        (None, "knows no sha256"),
        ({"size": 10, "sha256": "../../../etc", "pointerSize": 1}, "knows no sha256"),
        ({"size": 51 * 10**9, "sha256": "0" * 64, "pointerSize": 1}, "over 50 GB"),
        ({"size": 0, "sha256": "0" * 64, "pointerSize": 1}, "knows no"),
    ],
)
def test_what_cannot_be_checked_is_not_fetched(server: HubServer, lfs: object, message: str) -> None:
    server.listed[FILE]["lfs"] = lfs
    with pytest.raises(DownloadError, match=message):
        pull()
    assert not server.asked_for_files


# --- what is on this machine ---


def cache(tmp_path: Path, commit: str, *files: str) -> Path:
    """Files in the Hugging Face cache, as it keeps them: links to blobs."""
    repo = tmp_path / "hf" / "hub" / "models--org--repo"
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    for file in files:
        blob, link = repo / "blobs" / f"{commit}-{file.replace('/', '-')}", repo / "snapshots" / commit / file
        blob.write_bytes(CONTENT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return repo


def test_what_is_here_needs_no_network(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull()
    server.close()
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    assert hub.find_local("org/repo") == hub.find_local("org/repo", "Q8_0") == path
    assert hub.find_local("org/repo", "q4_0") is None
    assert hub.find_local("org/other") is None
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        hub.look_up("org/repo", "q4_0")


def test_the_shared_cache_is_read_and_not_written(server: HubServer, tmp_path: Path) -> None:
    repo = cache(tmp_path, "a" * 40, "other-Q4_0.gguf")
    before = sorted(tmp_path.joinpath("hf").rglob("*"))
    assert hub.find_local("org/repo", "q4_0") == repo / "snapshots" / ("a" * 40) / "other-Q4_0.gguf"
    assert hub.find_local("org/repo", "q8_0") is None
    pull("q8_0")
    assert sorted(tmp_path.joinpath("hf").rglob("*")) == before


def test_the_cache_gives_its_current_version(server: HubServer, tmp_path: Path) -> None:
    for age, commit in enumerate("cab"):
        repo = cache(tmp_path, commit, FILE)
        os.utime(repo / "snapshots" / commit, (1000 - age, 1000 - age))
    assert hub.find_local("org/repo") == repo / "snapshots" / "c" / FILE
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a")
    assert hub.find_local("org/repo") == repo / "snapshots" / "a" / FILE


def test_half_a_set_and_a_dangling_link_are_not_found(server: HubServer, tmp_path: Path) -> None:
    repo = cache(tmp_path, "a", "big-Q4_0-00001-of-00002.gguf", FILE)
    (repo / "blobs" / f"a-{FILE}").unlink()
    assert hub.find_local("org/repo", "q4_0") is None
    assert hub.find_local("org/repo", "q8_0") is None


def test_several_files_here_are_listed(server: HubServer, tmp_path: Path) -> None:
    cache(tmp_path, "a", "a-Q4_0.gguf", "b-Q4_0.gguf")
    with pytest.raises(UsageError, match="fits 2 files") as caught:
        hub.find_local("org/repo", "q4_0")
    assert "a-Q4_0.gguf, b-Q4_0.gguf" in caught.value.hint


# --- a header from afar ---


def test_a_remote_file_reads_like_a_local_one(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub._RemoteFile, "BLOCK", 70_000)
    far, near, dice = hub.remote_header(hub.look_up("org/repo")), io.BytesIO(CONTENT), random.Random(3)
    assert far.seekable()
    for _ in range(300):
        where, n = dice.randrange(2 * len(CONTENT)), dice.choice([0, 1, 8, 500, 100_000])
        whence = dice.choice([os.SEEK_SET, os.SEEK_END])
        offset = where if whence == os.SEEK_SET else -where % len(CONTENT) * -1
        assert far.seek(offset, whence) == near.seek(offset, whence) == far.tell()
        assert far.read(n) == near.read(n)


def test_a_header_costs_only_the_blocks_it_lies_in(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub._RemoteFile, "BLOCK", 100_000)
    with hub.remote_header(hub.look_up("org/repo")) as far:
        assert far.read(10) == CONTENT[:10]
        far.seek(90_000)
        assert far.read(20_000) == CONTENT[90_000:110_000]
        far.seek(0)
        assert far.read(4) == b"GGUF"
    assert server.ranges == ["bytes=0-99999", "bytes=100000-199999"]
    assert not here()


def test_a_remote_file_survives_a_drop_and_a_busy_server(server: HubServer) -> None:
    server.faults.extend([Fault(drop_after=50), Fault(status=503), Fault(drop_after=7, without_length=True)])
    naps = Naps()
    assert hub.remote_header(hub.look_up("org/repo"), sleep=naps).read(1000) == CONTENT[:1000]
    assert len(naps) == 3


def test_a_remote_file_takes_no_more_than_it_asked_for(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub._RemoteFile, "BLOCK", 1000)
    server.faults.append(Fault(body=CONTENT, stall=True, without_length=True))
    assert hub.remote_header(hub.look_up("org/repo"), sleep=Naps()).read(1000) == CONTENT[:1000]
    assert server.ranges == ["bytes=0-999"]


@pytest.mark.parametrize(
    "fault", [Fault(ignore_range=True), Fault(headers={"Content-Range": "bytes 0-9/10"})]
)
def test_a_server_without_ranges_gives_no_header(server: HubServer, fault: Fault) -> None:
    server.faults.append(fault)
    with pytest.raises(DownloadError, match="does not send parts"):
        hub.remote_header(hub.look_up("org/repo")).read(1)


def test_a_remote_file_that_changes_is_left(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub._RemoteFile, "BLOCK", 1000)
    far = hub.remote_header(hub.look_up("org/repo"))
    far.read(10)
    server.etags[FILE] = '"new"'
    far.seek(5000)
    with pytest.raises(DownloadError, match="changed while it was read"):
        far.read(10)


def test_a_refusal_reaches_the_reader(server: HubServer) -> None:
    far = hub.remote_header(hub.look_up("org/repo"))
    server.faults.append(Fault(status=404))
    with pytest.raises(LocalspecError, match="has no file"):
        far.read(1)


# --- the environment of a fresh process ---


def test_the_librarys_variables_are_honoured(server: HubServer, tmp_path: Path) -> None:
    cache(tmp_path, "a", "other-Q4_0.gguf")
    script = (
        "from localspec.models import hub\n"
        "print(hub.fetch(hub.look_up('org/repo', 'q8_0')))\n"
        "print(hub.find_local('org/repo', 'q4_0'))\n"
        "hub.constants.HF_HUB_OFFLINE = True\n"
        "try: hub.look_up('org/repo')\n"
        "except hub.DownloadError as error: print(error)\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "NO_PROXY": "127.0.0.1"}
    env |= {"HF_ENDPOINT": server.url, "HF_TOKEN": "hf_secret", "HF_HOME": str(tmp_path / "hf")}
    env |= {"LOCALSPEC_HOME": str(tmp_path / "mine"), "HF_HUB_DISABLE_TELEMETRY": "0", "AGENT": "someone"}
    run = partial(subprocess.run, check=False, capture_output=True, text=True, timeout=20)
    done = run([sys.executable, "-c", script], env=env)
    assert done.stderr == ""
    fetched, found, refused = done.stdout.splitlines()
    assert fetched == str(tmp_path / "mine" / "models" / "org" / "repo" / FILE)
    assert found == str(tmp_path / "hf" / "hub" / "models--org--repo" / "snapshots" / "a" / "other-Q4_0.gguf")
    assert "HF_HUB_OFFLINE" in refused
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer hf_secret"}
    assert not any("agent-harnesses" in asked.path for asked in server.asked)
