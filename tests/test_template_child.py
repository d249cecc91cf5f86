"""The process that runs templates has nothing to do harm with."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat import render
from localspec.chat.template import Renderer

PROGRAM = Path(render.__file__)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
posix = pytest.mark.skipif(os.name != "posix", reason="needs limits")


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """/proc's folder of a child that has rendered once."""
    monkeypatch.setenv("SECRET", "of the parent")
    renderer = Renderer("x")
    renderer.render({})
    assert renderer._child
    yield Path(f"/proc/{renderer._child._process.pid}")
    renderer.close()


@linux
def test_what_it_is_given(proc: Path) -> None:
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)
    try:
        renderer = Renderer("x")
        renderer.render({})
        assert renderer._child
        pid = renderer._child._process.pid
        assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
        renderer.close()
    finally:
        os.close(extra)
    assert b"SECRET" not in (proc / "environ").read_bytes()
    assert os.readlink(proc / "cwd") == "/"
    assert os.getsid(int(proc.name)) == int(proc.name) != os.getsid(0)


@linux
def test_its_limits(proc: Path) -> None:
    lines = (proc / "limits").read_text().splitlines()
    limits = {line[:25].strip(): line[25:].split()[:2] for line in lines}
    for name in ("file size", "core file size", "processes", "open files"):
        assert limits[f"Max {name}"] == ["0", "0"]
    for name in ("address space", "data size"):
        assert limits[f"Max {name}"] == [str(512 << 20)] * 2
    assert int(limits["Max cpu time"][0]) <= render.SECONDS_CPU + 2


@linux
def test_it_imports_nothing_of_ours(proc: Path) -> None:
    mapped = (proc / "maps").read_text() + (proc / "cmdline").read_text()
    assert "numpy" not in mapped
    assert "llama" not in mapped
    code = f"import runpy, sys; runpy.run_path({str(PROGRAM)!r})\n"
    code += "print([name for name in sys.modules if 'localspec' in name])"
    printed = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout == "[]\n"


LIMITED = """
import runpy
child = runpy.run_path(PROGRAM)
child["limit"]()
"""


@posix
@pytest.mark.parametrize(
    "tried",
    [
        "open('/etc/passwd')",
        "open('made', 'w')",
        "__import__('socket').socket()",
        "__import__('os').pipe()",
        "bytearray(600 << 20)",
    ],
)
def test_the_limits_hold(tried: str, tmp_path: Path) -> None:
    code = f"PROGRAM = {str(PROGRAM)!r}\nimport socket, os{LIMITED}"
    code += textwrap.dedent(f"""
        try:
            {tried}
        except (OSError, MemoryError) as error:
            print("refused")
    """)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"refused\n"


@posix
def test_it_ends_itself_when_nobody_else_does() -> None:
    code = f"PROGRAM = {str(PROGRAM)!r}{LIMITED}child['limit_cpu'](0)\nwhile True: pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode < 0


def test_it_leaves_with_its_parent() -> None:
    """The end of its input is the end of it."""
    folders = {str(Path(__import__(name).__file__ or "").parents[1]) for name in ("jinja2", "markupsafe")}
    command = [sys.executable, "-I", "-S", "-B", str(PROGRAM), *folders]
    frame = json.dumps({"source": "{{ x }}", "variables": {"x": 1}, "now": "2026-01-01", "most": 9}).encode()
    done = subprocess.run(
        command, input=len(frame).to_bytes(4, "big") + frame, capture_output=True, check=True, env={}
    )
    out = io.BytesIO(done.stdout)
    assert [render.receive(out), json.loads(render.receive(out) or b""), render.receive(out)] == [
        b"",
        {"text": "1"},
        None,
    ]


def test_the_text_is_counted_while_it_is_written() -> None:
    request = {"source": "{% for i in range(9) %}ab{{ i }}{% endfor %}", "variables": {}, "now": "2026-01-01"}
    replies = [
        json.loads(render.reply(json.dumps(request | {"most": most}).encode(), render.Templates().render))
        for most in (26, 27)
    ]
    assert "more than 26 characters" in replies[0]["error"]
    assert replies[1] == {"text": "ab0ab1ab2ab3ab4ab5ab6ab7ab8"}


def test_nonsense_is_answered() -> None:
    assert "error" in json.loads(render.reply(b"{", render.Templates().render))
