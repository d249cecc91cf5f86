"""As much of the Hub as a download needs, on loopback, with the faults a test asks for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Fault:
    """What goes wrong with one answer. `first` is run before anything of it is sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    drop_after: int | None = None
    stall: bool = False
    ignore_range: bool = False
    without_length: bool = False
    body: bytes | None = None
    first: Callable[[], None] = lambda: None


@dataclass
class Asked:
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class HubServer:
    """Serves `files` of `repo`. Answers to file requests take one of `faults` each while there are any."""

    def __init__(self, repo: str = "org/repo") -> None:
        self.repo = repo
        self.files: dict[str, bytes] = {}
        self.info: dict[str, Any] = {}
        self.listed: dict[str, dict[str, Any]] = {}
        self.etags: dict[str, str] = {}
        self.faults: deque[Fault] = deque()
        self.api_faults: deque[Fault] = deque()
        self.redirect_to: HubServer | None = None
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        if not self.closing.is_set():
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def add(self, path: str, content: bytes, *, etag: str | None = None) -> None:
        """A file and its listing; an ETag of "" means none is sent."""
        self.files[path] = content
        digest = hashlib.sha256(content).hexdigest()
        self.etags[path] = f'"{digest}"' if etag is None else etag
        lfs = {"size": len(content), "sha256": digest, "pointerSize": 134}
        self.listed[path] = {"rfilename": path, "size": len(content), "blobId": "0" * 40, "lfs": lfs}

    @property
    def asked_for_files(self) -> list[Asked]:
        return [asked for asked in self.asked if "/resolve/" in asked.path or asked.path.startswith("/cdn/")]

    @property
    def ranges(self) -> list[str | None]:
        return [asked.range for asked in self.asked_for_files]

    def api(self) -> bytes:
        siblings = list(self.listed.values())
        answer = {"id": self.repo, "sha": COMMIT, "gated": False, "disabled": False, "siblings": siblings}
        return json.dumps({**answer, "cardData": {"license": "apache-2.0"}, **self.info}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            timeout = (
                5  # and HTTP/1.0: one request a connection, so no client meets a server of an earlier test
            )

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                hub.asked.append(Asked(self.path, {k.lower(): v for k, v in self.headers.items()}))
                path = self.path.split("?")[0]
                name = path.split(f"/resolve/{COMMIT}/")[-1].removeprefix("/cdn/")
                is_api = path.startswith("/api/")
                queue = hub.api_faults if is_api else hub.faults
                fault = queue.popleft() if queue else Fault()
                fault = replace(fault, headers=dict(fault.headers))
                fault.first()
                if fault.status:
                    self.send(fault.status, fault.body or b"{}", fault)
                elif is_api and path == f"/api/models/{hub.repo}":
                    self.send(200, hub.api() if fault.body is None else fault.body, fault)
                elif hub.redirect_to and not is_api:
                    to = Fault(headers={"Location": f"{hub.redirect_to.url}/cdn/{name}"})
                    self.send(302, b"", to)
                elif name in hub.files and not is_api:
                    self.send_file(hub.files[name], hub.etags[name], fault)
                else:
                    self.send(404, b"{}", Fault(headers={"X-Error-Code": "RepoNotFound"}))

            def send_file(self, content: bytes, etag: str, fault: Fault) -> None:
                fault.headers = {**({"ETag": etag} if etag else {}), **fault.headers}
                wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if not wanted or fault.ignore_range or self.headers.get("If-Range", etag) != etag:
                    self.send(200, content if fault.body is None else fault.body, fault)
                    return
                start, end = int(wanted[1]), int(wanted[2] or len(content) - 1) + 1
                if start >= len(content):
                    self.send(416, b"", fault)
                    return
                span = f"bytes {start}-{min(end, len(content)) - 1}/{len(content)}"
                fault.headers = {"Content-Range": span, **fault.headers}
                self.send(206, content[start:end] if fault.body is None else fault.body, fault)

            def send(self, status: int, body: bytes, fault: Fault) -> None:
                self.send_response(status)
                if not fault.without_length and "Content-Length" not in fault.headers:
                    fault.headers["Content-Length"] = str(len(body))
                for header, value in fault.headers.items():
                    self.send_header(header, value)
                self.end_headers()
                self.wfile.write(body[: fault.drop_after])
                self.wfile.flush()
                if fault.stall:
                    hub.closing.wait(3)

        return Handler


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Poll; fails the test when `true` never is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.005)
