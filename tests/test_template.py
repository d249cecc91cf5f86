"""Templates may use what transformers gives them, and do no harm whatever they try."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.chat import template
from localspec.chat.template import CHATML, LONGEST_TEMPLATE, NAMED, Renderer, TemplateFailed, suitable

VARIABLES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi é🙂"}], "tools": None}


def render(source: str, **variables: Any) -> str:
    renderer = Renderer(source)
    try:
        return renderer.render({**VARIABLES, **variables})
    finally:
        renderer.close()


def child(renderer: Renderer) -> int:
    """The process that renders, started if it was not."""
    renderer.render(VARIABLES)
    assert renderer._child
    return renderer._child._process.pid


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    renderer = Renderer("{{ messages[0].content }}")
    yield renderer
    renderer.close()


# What templates of real models use

USES = {
    "tojson": ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
    "tojson, ascii": ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
    "tojson, indented": ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
    "tojson, separators": ("{{ [1, 2] | tojson(separators=(',', ':'), sort_keys=true) }}", "[1,2]"),
    "no tools": ("{{ 'none' if tools is none }}{{ 'x' if tools }}", "none"),
    "a variable": ("{{ 'off' if enable_thinking is defined and not enable_thinking }}", "off"),
    "unknown": ("a{{ nothing }}b{{ messages[0].name }}", "ab"),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = i %}{% endfor %}{{ ns.n }}",
        "2",
    ),
    "loop controls": (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    ),
    "generation": ("{% generation %}{% set x = 1 %}a{{ x }}{% endgeneration %}b", "a1b"),
    "macro": ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(messages[-1]['content']) }}", "[hi é🙂]"),
    "methods": ("{{ 'a</think>\nb'.split('</think>')[-1].strip('\n').upper() }}", "B"),
    "items": ("{{ {'a': 1}.items() | list }}", "[('a', 1)]"),
    "trim": ("  {% if true %}\n{{ ' x ' | trim }}\n  {% endif %}\n", "x\n"),
    "tests": ("{{ messages is iterable and messages is not mapping and 'x' is string }}", "True"),
    "map": ("{{ messages | map(attribute='role') | join(',') }}", "user"),
    "selectattr": ("{{ messages | selectattr('role', 'equalto', 'x') | list | length }}", "0"),
    "pprint": ("{{ [1] | pprint }}", "[1]"),
}


@pytest.mark.parametrize(("source", "text"), USES.values(), ids=USES.keys())
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source, enable_thinking=False) == text


def test_the_time_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=lambda: datetime(2001, 2, 3, 4, 5, 6, 7))
    monkeypatch.setattr(template, "datetime", clock)
    assert render("{{ strftime_now('%d %b %Y, %H:%M') }}") == "03 Feb 2001, 04:05"


def test_a_template_is_compiled_once_and_keeps_nothing(renderer: Renderer) -> None:
    assert [renderer.render({"messages": [{"content": text}]}) for text in "abc"] == ["a", "b", "c"]
    with pytest.raises(TemplateFailed, match="undefined"):
        renderer.render({})
    assert renderer.render(VARIABLES) == "hi é🙂"


# What hostile templates try

NESTED = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
ATTACKS = {
    "class": ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe"),
    "globals": ("{{ lipsum.__globals__['os'].popen('id').read() }}", "unsafe|undefined"),
    "cycler": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
    "attr": ("{{ (''|attr('__class__')).__mro__ }}", "unsafe|undefined"),
    "attr by map": ("{{ (['']|map(attribute='__class__')|first).__mro__ }}", "unsafe|undefined"),
    "format": ("{{ '{0.__class__.__mro__}'.format(messages) }}", "unsafe"),
    "format_map": ("{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}", "unsafe"),
    "generator": ("{{ (messages|map('upper')).gi_frame.f_globals }}", "unsafe|undefined"),
    "change": ("{{ messages.append(1) }}", "unsafe|safely"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange"),
    "multiplied": ("{{ 'x' * 10**9 }}", "512 MB"),
    "multiplied, less": ("{{ 'x' * 10**7 }}", "more than .* characters"),
    "justified": ("{{ 'x'.ljust(10**8) }}", "more than .* characters|512 MB"),
    "justified, more": ("{{ 'x'.ljust(10**9) }}", "512 MB"),
    "wide format": ("{{ '{:>999999999}'.format(1) }}", "512 MB"),
    "doubling": (DOUBLING, "512 MB"),
    "lists": ("{{ [[1] * 1000] * 10**8 }}", "512 MB"),
    "many pieces": ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "more than .* characters"),
    "indent": ("{{ messages | tojson(indent=10**9) }}", "512 MB"),
    "macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "without end"),
    "brackets": ("{{" + "(" * 20000, "without end"),
    "blocks": ("{% if 1 %}" * 6000, "without end"),
    "import": ("{% import 'os' as os %}", "."),
    "include": ("{% include '/etc/passwd' %}", "."),
    "long": ("x" * (LONGEST_TEMPLATE + 1), "characters long"),
    "very long": ("x" * (1 << 20), "characters long"),
}


@pytest.mark.parametrize(("source", "why"), ATTACKS.values(), ids=ATTACKS.keys())
def test_attacks_fail(source: str, why: str) -> None:
    with pytest.raises(TemplateFailed, match=why):
        render(source)


@pytest.mark.parametrize("source", [NESTED, "{{ 7 ** (7 ** 12) }}"], ids=["loops", "power"])
def test_an_endless_template_is_stopped(source: str) -> None:
    renderer = Renderer(source, seconds=0.1)
    with pytest.raises(TemplateFailed, match=r"longer than 0\.1 s"):
        renderer.render(VARIABLES)
    assert renderer._child is None


@pytest.mark.slow
def test_two_seconds_are_the_limit() -> None:
    with pytest.raises(TemplateFailed, match="longer than 2 s"):
        render(NESTED)


def test_what_a_template_raises_is_cut() -> None:
    with pytest.raises(TemplateFailed) as failed:
        render("{{ raise_exception('\x1b[2J' * 1000000) }}")
    assert len(str(failed.value)) <= 1000


def test_a_big_conversation_may_be_written_in_full() -> None:
    content = "é🙂\n" * 500_000
    assert render("{{ messages[0].content }}" * 3, messages=[{"content": content}]) == content * 3


# The process


def test_a_crashed_process_is_replaced(renderer: Renderer) -> None:
    first = child(renderer)
    os.kill(first, signal.SIGKILL)
    assert renderer.render(VARIABLES) == "hi é🙂"
    assert child(renderer) != first


def test_a_process_that_always_dies_is_given_up(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys, os; sys.stdout.buffer.write(bytes(4)); sys.stdout.flush(); sys.stdin.buffer.read(4)"
    )
    (tmp_path / "render.py").write_text(f"{program}; open({str(tmp_path / 'starts')!r}, 'a').write('x')")
    monkeypatch.setattr(template, "__file__", str(tmp_path / "template.py"))
    with pytest.raises(TemplateFailed, match="ends the process"):
        renderer.render(VARIABLES)
    assert (tmp_path / "starts").read_text() == "xx"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("(1 << 31).to_bytes(4, 'big')", "nonsense"),
        ("(2).to_bytes(4, 'big') + b'[]'", "nonsense"),
        ("(2).to_bytes(4, 'big') + b'{]'", "nonsense"),
        ("(1 << 20).to_bytes(4, 'big') + b'[' * (1 << 20)", "nonsense"),
        ("(10).to_bytes(4, 'big') + b'{\"text\":1}'", "nonsense"),
        ("(14).to_bytes(4, 'big') + b'{\"error\":1234}'", "1234"),
    ],
)
def test_a_reply_is_not_trusted(
    reply: str, why: str, renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import sys\nout = sys.stdout.buffer\nout.write(bytes(4) + {reply})\nout.flush()\n"
    (tmp_path / "render.py").write_text(program + "sys.stdin.buffer.read()")
    monkeypatch.setattr(template, "__file__", str(tmp_path / "template.py"))
    with pytest.raises(TemplateFailed, match=why):
        renderer.render(VARIABLES)


@pytest.mark.parametrize("executable", ["/no/such/python", "/bin/true"])
def test_no_process_at_all(executable: str, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", executable)
    with pytest.raises(TemplateFailed, match="cannot be run here"):
        renderer.render(VARIABLES)


def test_closing_leaves_nothing(renderer: Renderer) -> None:
    pid = child(renderer)
    renderer.close()
    with pytest.raises(ChildProcessError):  # not even a zombie
        os.waitpid(pid, os.WNOHANG)
    assert renderer.render(VARIABLES) == "hi é🙂"


def test_the_process_ends_with_its_object() -> None:
    renderer = Renderer("x")
    pid = child(renderer)
    del renderer
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_an_interrupt_does_not_mix_up_replies(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    child(renderer)

    def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(template._Child, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            renderer.render(VARIABLES)
    assert renderer._child is None
    assert renderer.render(VARIABLES) == "hi é🙂"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
def test_two_thousand_renders_leak_nothing(renderer: Renderer) -> None:
    pid = child(renderer)
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(2000):
        renderer.render(VARIABLES)
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before
    assert child(renderer) == pid
    for _ in range(5):
        renderer.close()
        renderer.render(VARIABLES)
    assert len(os.listdir("/proc/self/fd")) == before[0]


# Named templates

TALK = [
    {"role": "system", "content": "S{x}"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": "V"},
]
WRITTEN = {
    "ChatML": "<|im_start|>system\nS{x}<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "Phi-4": "<|im_start|>system<|im_sep|>S{x}<|im_end|><|im_start|>user<|im_sep|>U<|im_end|>"
    "<|im_start|>assistant<|im_sep|>A<|im_end|><|im_start|>user<|im_sep|>V<|im_end|><|im_start|>assistant<|im_sep|>",
    "Llama 3": "<|start_header_id|>system<|end_header_id|>\n\nS{x}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "Gemma": "<start_of_turn>user\nS{x}\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "Gemma 4": "<|turn>system\nS{x}<turn|>\n<|turn>user\nU<turn|>\n<|turn>model\nA<turn|>\n"
    "<|turn>user\nV<turn|>\n<|turn>model\n",
    "gpt-oss": "<|start|>developer<|message|># Instructions\n\nS{x}<|end|><|start|>user<|message|>U<|end|>"
    "<|start|>assistant<|channel|>final<|message|>A<|end|><|start|>user<|message|>V<|end|><|start|>assistant",
    "Phi-3": "<|system|>\nS{x}<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n"
    "<|user|>\nV<|end|>\n<|assistant|>\n",
    "Mistral": "[INST] S{x}\n\nU[/INST] A</s>[INST] V[/INST]",
    "DeepSeek": "S{x}\n\n<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V<｜Assistant｜>",  # noqa: RUF001
}


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.name)
def test_named_templates(named: template.Named) -> None:
    assert named.render(TALK) == WRITTEN[named.name]
    assert suitable(set(named.signs).__contains__) is named
    assert all(re.search(re.escape(sign), named.render(TALK)) for sign in named.signs)


def test_chatml_where_nothing_suits() -> None:
    assert suitable(lambda _: False) is CHATML
    assert suitable({"<|im_start|>", "[INST]", "<|end|>"}.__contains__) is CHATML


def test_a_system_message_alone_is_asked() -> None:
    gemma = next(named for named in NAMED if named.name == "Gemma")
    assert gemma.render(TALK[:1]) == "<start_of_turn>user\nS{x}<end_of_turn>\n<start_of_turn>model\n"
