"""`localspec verify`: what it prints, its exit code, and that a wrong rule of acceptance does not pass."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from tables import certain

from localspec.bench import check
from localspec.bench.check import InTurns, Wanted, verify
from localspec.bench.workloads import parse_temps
from localspec.cli import main
from localspec.config import Settings
from localspec.engine import accept
from localspec.engine.proven import WIDTHS
from localspec.engine.types import Attempt, Cancelled, Step
from localspec.errors import ExitStatus, UsageError
from localspec.ui.terminal import Terminal


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model that never stops by itself, a draft that often agrees with it, prompts."""
    folder = tmp_path_factory.mktemp("verify")
    f32 = tiny.write_llama(folder / "f32.gguf", end_bias=-30.0)
    draft = tiny.write_llama(folder / "draft.gguf", end_bias=-30.0, noise=0.1)
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        '{"prompt": "the cat and the dog and the cat and"}\n{"prompt": "for i in range(3):"}\n'
    )
    return {
        "F32": f32,
        "Q8_0": tiny.quantize(f32, folder / "q8_0.gguf", "Q8_0"),
        "draft": tiny.quantize(draft, folder / "draft-q8_0.gguf", "Q8_0"),
        "prompts": prompts,
    }


def terminal() -> Terminal:
    return Terminal(io.StringIO(), io.StringIO(), out_tty=False, err_tty=False, err_color=False)


def certified(files: dict[str, Path], **given: Any) -> tuple[ExitStatus, dict[str, Any], str]:
    """Exit code, certificate and stderr of a run on the quantised model with one thread."""
    wanted = Wanted(tokens=given.pop("tokens", 40), prompts=files["prompts"], **given.pop("wanted", {}))
    settings = Settings(**{"model": str(files["Q8_0"]), "threads": 1, "ctx": 1024, "draft": "ngram", **given})
    streams = terminal()
    status = verify(settings, streams, wanted, as_json=True)
    assert isinstance(streams.out, io.StringIO)
    assert isinstance(streams.err, io.StringIO)
    return status, json.loads(streams.out.getvalue()), streams.err.getvalue()


def localspec(monkeypatch: pytest.MonkeyPatch, *args: str | Path) -> int:
    """The command line, in this process."""
    monkeypatch.setattr("sys.argv", ["localspec", "verify", *map(str, args)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.mark.parametrize("exact", [False, True])
def test_a_certificate(files: dict[str, Path], exact: bool) -> None:
    """Every prompt at every temperature, really guessed at, and the conditions with it."""
    status, told, err = certified(files, exact=exact, draft=f"ngram,{files['draft']}")
    assert status == ExitStatus.OK
    assert told["verdict"] == "identical"
    assert [(c["prompt"], c["temperature"], c["seed"]) for c in told["comparisons"]] == [
        (1, 0.0, 0),
        (2, 0.0, 0),
        (1, 0.8, 0),
        (2, 0.8, 0),
    ]
    assert {c["tokens"] for c in told["comparisons"]} == {40}
    assert told["speculation"]["drafted"] > 100
    assert told["speculation"]["accepted"] > 10
    assert told["settings"]["exact"] == ("yes" if exact else "no")
    assert told["settings"]["draft"] == "ngram+draft-q8_0"
    assert told["model"] == "q8_0.gguf"
    assert len(told["fingerprint"]) == 64
    assert set(told["versions"]) == {"localspec", "llama-cpp-python"}
    assert "prompt 2 of 2 at temperature 0.8" in err
    if exact:
        assert tuple(told["exact_widths"]) == WIDTHS


def test_a_pinned_length(files: dict[str, Path]) -> None:
    _, told, _ = certified(files, draft_len=3, wanted={"temps": (0.8,)})
    assert set(told["probe"]) <= {"2", "3", "4"}
    assert told["speculation"]["drafted"] > 10


def test_rejection_tests_laws(files: dict[str, Path]) -> None:
    """Texts at temperature 0, laws above it; without a draft model there is no law to test."""
    options = {"accept": "rejection", "draft": f"ngram,{files['draft']}", "tokens": 20}
    status, told, _ = certified(files, **options)
    assert (status, told["defects"]) == (ExitStatus.OK, [])
    assert [c["temperature"] for c in told["comparisons"]] == [0.0, 0.0]
    assert len(told["laws"]) == 6
    _, told, _ = certified(files, **options | {"draft": "ngram"})
    assert (len(told["comparisons"]), told["laws"]) == (4, [])


def test_a_model_without_exact_kernels(files: dict[str, Path]) -> None:
    status, told, err = certified(files, exact=True, model=str(files["F32"]), tokens=10)
    assert status == ExitStatus.OK
    assert told["speculation"]["drafted"] == 0
    assert "do not compute the same" in err


def believe_everything(
    guesses: Sequence[int], choose: Callable[[int], int], is_end: Callable[[int], bool]
) -> accept.Verdict:
    """Keeps every guess unseen."""
    return accept.Verdict([*guesses, choose(len(guesses))], len(guesses))


def test_a_defect(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule that keeps wrong guesses texts differ by more than a tie, and the exit code says so."""
    monkeypatch.setattr(accept, "match", believe_everything)
    status, told, _ = certified(files, exact=True)
    assert (status, told["verdict"]) == (ExitStatus.ERROR, "DEFECT")
    assert told["defects"]
    code = localspec(
        monkeypatch,
        *("-m", files["Q8_0"], "-t", "1", "--ctx", "1024", "--draft", "ngram"),
        *("--tokens", "40", "--temps", "0", "--prompts", files["prompts"]),
    )
    assert code == 1


def test_text_on_stdout_progress_on_stderr(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("-m", files["Q8_0"], "-t", "1", "--ctx", "1024", "--draft", "ngram", "--exact")
    code = localspec(monkeypatch, *model, "--tokens", "20", "--temps", "0.8", "--prompts", files["prompts"])
    out, err = capsys.readouterr()
    assert code == 0
    assert out.splitlines()[-1].split() == ["verdict", "identical"]
    assert "threads 1" in out
    assert "prompt 1 of 2" in err
    assert "proving" in err
    code = localspec(
        monkeypatch, *model, "-q", "--tokens", "5", "--temps", "0", "--json", "--prompts", files["prompts"]
    )
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert json.loads(out)["verdict"] == "identical"


def test_one_built_in_prompt_of_each_family(files: dict[str, Path]) -> None:
    """Those that the context does not hold are left out, and that is said."""
    settings = Settings(model=str(files["Q8_0"]), threads=1, ctx=768, draft="ngram")
    streams = terminal()
    assert verify(settings, streams, Wanted((0.0,), 5), as_json=True) == ExitStatus.OK
    told = json.loads(streams.out.getvalue())  # type: ignore[attr-defined]
    left_out = 6 - len(told["comparisons"])
    assert 0 < left_out < 6
    assert f"{left_out} of 6 prompts do not fit" in streams.err.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"draft": "none"}, "nothing to verify"),
        ({"ctx": 256, "tokens": 250}, "no prompt leaves room for 250 tokens"),
        ({"exact": True, "accept": "rejection"}, "--exact"),
    ],
)
def test_what_is_refused(files: dict[str, Path], given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        certified(files, **given)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--temps", "hot"), "--temps 'hot'"),
        (("--prompts", "/no/such/file"), "cannot read /no/such/file"),
        (("--tokens", "0"), "--tokens"),
    ],
)
def test_a_bad_command_line(
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    words: str,
) -> None:
    assert localspec(monkeypatch, "-m", files["Q8_0"], *args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


@pytest.mark.parametrize(
    ("text", "temps"),
    [("0,0.8", (0.0, 0.8)), (" 1 ", (1.0,)), ("0,0,0.0", (0.0,)), ("100", (100.0,))],
)
def test_temperatures(text: str, temps: tuple[float, ...]) -> None:
    assert parse_temps(text) == temps


@pytest.mark.parametrize("text", ["", ",", "0,", "-1", "nan", "inf", "101", "0;1"])
def test_no_temperatures(text: str) -> None:
    with pytest.raises(UsageError, match="--temps"):
        parse_temps(text)


def test_ctrl_c(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(*_args: object, **_options: object) -> None:
        raise Cancelled

    monkeypatch.setattr(check, "run", cancelled)
    settings, streams = Settings(model=str(files["Q8_0"]), threads=1, ctx=1024, draft="ngram"), terminal()
    status = verify(settings, streams, Wanted(prompts=files["prompts"]), as_json=False)
    assert (status, streams.out.getvalue()) == (ExitStatus.INTERRUPTED, "")  # type: ignore[attr-defined]


class Counting:
    """A policy that guesses its number and counts what it is told."""

    def __init__(self, number: int) -> None:
        self.number, self.begun = number, 0
        self.learnt: list[Step] = []

    def begin(self, context: Sequence[int]) -> None:
        self.begun += 1

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        return Attempt(str(self.number), certain([self.number]), 2)

    def plain(self, n_cached: int) -> float:
        return float(self.number)

    def learn(self, step: Step, n_cached: int) -> None:
        self.learnt.append(step)


def test_policies_in_turns() -> None:
    first, second = Counting(1), Counting(2)
    policy = InTurns([first, second])
    policy.begin([1])
    assert (first.begun, second.begun) == (1, 1)
    base = Step((1,), "x", 0, 0, 0.0, 0.0, 0.0)
    for i in range(4):
        assert policy.draft([1], 5).source == str(1 + i % 2)
        policy.learn(replace(base, drafted=i), 0)
    assert [step.drafted for step in first.learnt] == [0, 2]
    assert [step.drafted for step in second.learnt] == [1, 3]
