"""Hugging Face: what a repository has, fetching it, a header from afar. Alone imports huggingface_hub.

Cache first, network second: `find_local` needs no network, `look_up` asks for names, sizes and hashes,
`fetch` brings the bytes into our own models folder. The shared Hugging Face cache is read, never written.
HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and HF_HOME mean what they mean there; nothing is reported to anyone.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # before the import: or it asks over the network who runs it
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import logging as hub_logging

from localspec import __version__, config
from localspec.errors import DownloadError, ModelNotFound
from localspec.models import names
from localspec.models.download import (
    RESUMES,
    Dropped,
    Expected,
    Patience,
    Reply,
    content_range,
    download,
    part_file,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

GIB = 2**30
hub_logging.set_verbosity(logging.ERROR)  # its warnings repeat on stderr whatever a server says


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `sha256`: "" where the Hub keeps the file without one."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Offer:
    """One model that can be fetched: all its files, at one commit."""

    repo: str
    revision: str
    licence: str
    gated: bool
    files: tuple[HubFile, ...]

    @property
    def bytes_total(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def targets(self) -> tuple[Path, ...]:
        """Where the files are or will be, in order; a model is loaded by the first."""
        return tuple(_folder(self.repo) / file.path for file in self.files)


def find_local(repo: str, wanted: str | None = None) -> Path | None:
    """The (first) file of `wanted` in our folder or the Hugging Face cache, its set complete; no network.

    `wanted` as in `names.pick`. Raises UsageError where several files on this machine fit.
    """
    for root in (_folder(repo), *_snapshots(repo)):
        here = [path.relative_to(root).as_posix() for path in root.rglob("*.gguf") if path.is_file()]
        try:
            return root / names.pick(sorted(here), wanted, repo)[0]
        except ModelNotFound:
            continue
    return None


def _folder(repo: str) -> Path:
    return config.models_folder().joinpath(*repo.split("/"))


def _snapshots(repo: str) -> list[Path]:
    """Versions of `repo` in the Hugging Face cache: the current one first, then the newest."""
    cache = Path(constants.HF_HUB_CACHE) / "--".join(["models", *repo.split("/")])
    try:
        current = (cache / "refs" / constants.DEFAULT_REVISION).read_text(encoding="utf-8").strip()
    except OSError:
        current = ""
    versions = [path for path in (cache / "snapshots").glob("*") if path.is_dir()]
    return sorted(versions, key=lambda path: (path.name == current, path.stat().st_mtime), reverse=True)


def look_up(repo: str, wanted: str | None = None, *, sleep: Callable[[float], None] = time.sleep) -> Offer:
    """Ask the Hub for the files of `wanted`, their sizes, hashes and licence. Raises DownloadError.

    Nothing is fetched. A gated repository is refused here if there is no token.
    """
    info = _info(repo, Patience(sleep))
    if info.id.lower() != repo.lower():
        raise DownloadError(f"{repo} is now called {info.id}", f"name it {info.id}")
    if info.disabled:
        raise DownloadError(f"{repo} was disabled by Hugging Face", "take another repository")
    if info.gated and not huggingface_hub.get_token():
        raise DownloadError(*_gated(repo))
    listed = {file.rfilename: file for file in info.siblings or []}
    files = []
    for name in names.pick(listed, wanted, repo):
        lfs = listed[name].lfs
        files.append(HubFile(name, (lfs.size if lfs else listed[name].size) or 0, lfs.sha256 if lfs else ""))
    revision = info.sha or constants.DEFAULT_REVISION
    return Offer(info.id, revision, _licence(info), bool(info.gated), tuple(files))


def _info(repo: str, patience: Patience) -> ModelInfo:
    while True:
        try:
            with _explained(repo):
                api = huggingface_hub.HfApi(library_name="localspec", library_version=__version__)
                info = api.model_info(repo, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            if not names.is_repo(info.id):
                raise ValueError(info.id)
            return info
        except Unreachable as unreachable:
            raise unreachable.error from unreachable
        except Dropped as dropped:
            patience.after(dropped)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"{_host()} does not answer as the Hub does"
            raise DownloadError(
                message, "check HF_ENDPOINT, or whether this network wants a login"
            ) from error


def _licence(info: ModelInfo) -> str:
    """What the repository's card says, "" if nothing; the name where the licence is none of the usual."""
    card = info.card_data
    name = (
        (card.get("license_name") if card.get("license") == "other" else card.get("license"))
        if card
        else None
    )
    return str(name or "")


def bytes_missing(offer: Offer) -> int:
    """What is still to be fetched, after what earlier runs left."""
    missing = 0
    for file, target in zip(offer.files, offer.targets, strict=True):
        part = part_file(target, file.sha256)
        have = next((path.stat().st_size for path in (target, part) if path.is_file()), 0)
        missing += max(file.size - have, 0)
    return missing


def check(offer: Offer) -> None:
    """Raise DownloadError if `offer` cannot be fetched and checked: too big, without a hash, no room."""
    for file in offer.files:
        name = f"{offer.repo}/{file.path}"
        if not re.fullmatch("[0-9a-f]{64}", file.sha256) or file.size <= 0:
            raise DownloadError(f"the Hub knows no sha256 of {name}", "fetch it by hand and give its path")
        if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            how = (
                f"run `hf download {offer.repo} {file.path}`, then the same again: that cache is looked into"
            )
            raise DownloadError(f"{name} is over 50 GB, more than the Hub sends in one file", how)
    folder = config.models_folder()
    disk = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    missing, free = bytes_missing(offer), shutil.disk_usage(disk).free
    if missing > free:
        what = f"{offer.repo} takes {missing / GIB:.1f} GiB more, {free / GIB:.1f} are free at {disk}"
        raise DownloadError(what, "free some space, or let LOCALSPEC_HOME name a folder on another disk")


def fetch(
    offer: Offer,
    *,
    on_bytes: Callable[[int, int], None] = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Download every file of `offer`, checked; returns the first. Raises DownloadError.

    `on_bytes` hears how many of `offer.bytes_total` bytes are here, often; `note` gets remarks.
    """
    check(offer)
    done = 0
    for file, target in zip(offer.files, offer.targets, strict=True):
        download(
            Expected(file.path, file.size, file.sha256),
            target,
            partial(_get, offer, file),
            lock_file=config.models_folder() / ".locks" / f"{file.sha256[:24]}.lock",
            on_bytes=lambda here, before=done: on_bytes(before + here, offer.bytes_total),  # type: ignore[misc]
            note=note,
            patience=Patience(sleep),
        )
        done += file.size
    return offer.targets[0]


def remote_header(offer: Offer, *, sleep: Callable[[float], None] = time.sleep) -> io.BufferedReader:
    """The (first) file of `offer` for reading and seeking, fetched block by block as it is read.

    Reading raises DownloadError. Meant for headers: nothing is kept beyond two blocks, nor checked.
    """
    return io.BufferedReader(_RemoteFile(offer, offer.files[0], sleep), buffer_size=2**16)


class _RemoteFile(io.RawIOBase):
    """Blocks of a file on the Hub by Range requests, the last two kept."""

    BLOCK = 4 * 2**20

    def __init__(self, offer: Offer, file: HubFile, sleep: Callable[[float], None]) -> None:
        super().__init__()
        self.file = file
        self._get = partial(_get, offer, file)
        self._sleep = sleep
        self._at = 0
        self._etag = ""
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self.file.size or not view:
            return 0
        number, skip = divmod(self._at, self.BLOCK)
        data = self._block(number)[skip : skip + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            patience = Patience(self._sleep)
            while True:
                try:
                    data = self._read(number * self.BLOCK)
                    break
                except Dropped as dropped:
                    patience.after(dropped)
            self._blocks = dict([*self._blocks.items(), (number, data)][-2:])
        return self._blocks[number]

    def _read(self, start: int) -> bytes:
        size = min(self.BLOCK, self.file.size - start)
        with self._get({"Range": f"bytes={start}-{start + size - 1}"}) as reply:
            etag = reply.headers.get("etag", "")
            if content_range(reply) != (start, self.file.size):
                raise DownloadError(f"{_host()} does not send parts of {self.file.path}", "fetch it whole")
            if self._etag not in ("", etag):
                raise DownloadError(f"{self.file.path} changed while it was read", "run the same again")
            self._etag = etag
            data = bytearray()
            for chunk in reply.iter_raw():
                data += chunk
                if len(data) >= size:
                    break
        if len(data) < size:
            raise Dropped(DownloadError(f"{self.file.path} ended early", "run the same again"))
        return bytes(data[:size])


class Unreachable(Dropped):
    """No connection, or it broke."""


@contextmanager
def _get(offer: Offer, file: HubFile, headers: Mapping[str, str]) -> Iterator[Reply]:
    """The response to a GET of `file`, redirects followed: 200, 206 or 416. See `download.Get`."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = huggingface_hub.hf_hub_url(offer.repo, file.path, revision=offer.revision)
    ours = build_hf_headers(library_name="localspec", library_version=__version__)
    sent = {**ours, "Accept-Encoding": "identity", **headers}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with (
        _explained(offer.repo, file.path),
        huggingface_hub.get_session().stream("GET", url, headers=sent, timeout=timeout) as reply,
    ):
        if reply.status_code not in (200, 206, 416):
            raise _refused(reply.status_code, reply.headers, offer.repo, file.path)
        yield reply


@contextmanager
def _explained(repo: str, file: str = "") -> Iterator[None]:
    """Turn what the library raises into Dropped (may be tried again) or DownloadError (what to do)."""
    from huggingface_hub import errors

    http_error = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])  # httpx's, or httpx2's
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        message = f"{repo} is not whole on this machine, and HF_HUB_OFFLINE forbids to fetch it"
        raise DownloadError(message, "unset HF_HUB_OFFLINE, or name a model that is here") from error
    except errors.HfHubHTTPError as error:
        raise _refused(error.response.status_code, error.response.headers, repo, file) from error
    except http_error as error:
        message = f"the connection to {_host()} failed: {str(error) or type(error).__name__}"
        hint = RESUMES if file else "check the network, or name a model that is on this machine"
        raise Unreachable(DownloadError(message, hint)) from error


def _refused(status: int, headers: Mapping[str, str], repo: str, file: str) -> Exception:
    """What an answer of 400 or more means for the user."""
    code, host = headers.get("x-error-code", ""), _host()
    if code == "GatedRepo":
        return DownloadError(*_gated(repo))
    if status == 404 and (code == "EntryNotFound" or (file and not code)):
        return DownloadError(f"{repo} has no file {file}", "run the same again for its present files")
    if status in (401, 404) and huggingface_hub.get_token():
        what = f"{host} knows no repository {repo} that your token may read"
        return DownloadError(what, "check the spelling, and that HF_TOKEN is valid")
    if status in (401, 404):
        what = f"{host} knows no public repository {repo}"
        return DownloadError(what, "check the spelling; for a private or gated one set HF_TOKEN")
    if status == 429:
        wait = _seconds_asked(headers)
        when = f"wait {wait:.0f} seconds" if wait else "wait some minutes"
        hint = f"{when}, then {RESUMES}; with HF_TOKEN the limit is higher"
        return Dropped(DownloadError(f"{host} limits requests (429)", hint), wait)
    if status >= 500 or status == 408:
        return Dropped(DownloadError(f"{host} is in trouble ({status})", f"later {RESUMES}"))
    return DownloadError(f"{host} refuses {repo} ({status})", "see whether your HF_TOKEN may read it")


def _gated(repo: str) -> tuple[str, str]:
    page = f"{constants.ENDPOINT}/{repo}"
    return f"{repo} is gated: you need its owner's leave", f"accept the terms at {page}, then set HF_TOKEN"


def _seconds_asked(headers: Mapping[str, str]) -> float:
    """How long the server wants to be left alone, 0 if it does not say."""
    asked = re.search(
        r"^(\d+)$|;\s*t\s*=\s*(\d+)", headers.get("retry-after") or headers.get("ratelimit") or ""
    )
    return float(asked[1] or asked[2]) if asked else 0.0


def _host() -> str:
    """Where requests go, without anything secret that an address may carry."""
    address = urlsplit(constants.ENDPOINT)
    return f"{address.hostname or constants.ENDPOINT}{f':{address.port}' if address.port else ''}"
