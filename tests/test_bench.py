"""The benchmark: the same texts under every setting, prices that are really paid, losses that add up."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from conftest import EXACT

from localspec.bench import compare, picture, run, settings
from localspec.bench.compare import Optimum, lost, reach
from localspec.bench.curves import read_curves, waits
from localspec.bench.decode import (
    Bench,
    DraftModel,
    Measured,
    Prices,
    in_turn,
    on_the_wall,
    others,
    replay,
    replays,
    tables_of,
)
from localspec.bench.outcomes import JUDGED, outcomes_of
from localspec.bench.record import Recorder, Recording
from localspec.bench.replay import Guesses
from localspec.bench.report import Run
from localspec.bench.settings import Parts, Tables
from localspec.bench.workloads import Prompt
from localspec.chat.prompt import ChatTemplate
from localspec.cli import main
from localspec.drafters import LazyDrafter, ModelDrafter
from localspec.engine import oracle
from localspec.engine.cost import LADDER, DraftCost, PassCosts
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Costly, Free
from localspec.engine.types import Sampling
from localspec.errors import UsageError
from localspec.llama.model import LlamaModel

FLAT = {n: 1.0 + 0.02 * (n - 1) for n in LADDER}
TICK = 2.0**-10
KNOWN = {n: TICK * cost for n, cost in FLAT.items()}
PRICES = Prices(FLAT, 0.1)
ALL_SETTINGS = ["none", "ngram-3", "draft-2", "greedy-2", "hybrid", "auto", "auto-warm", "auto-unlimited"]
SESSION = Prompt("talk", "mixed", ("say it", "again"))
SINGLE = Prompt("one", "code", ("a list",))


def never(_token: int) -> bool:
    return False


@pytest.fixture(scope="module")
def draft_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("draft") / "draft.gguf", noise=0.1)


@pytest.fixture(scope="module")
def models(tiny_path: Path, draft_path: Path) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    with LlamaModel(tiny_path, EXACT) as target, LlamaModel(draft_path, EXACT) as draft:
        yield target, draft


@pytest.fixture
def bench(models: tuple[LlamaModel, LlamaModel]) -> Bench:
    """A bench whose clock goes on by TICK, a plain pass, whenever it is asked."""
    target, draft = models

    def load() -> LlamaModel:
        return LlamaModel(draft.path, draft.options)

    source = DraftModel(draft, load, DraftCost(1e-6, {1: 1.0}), 0.9, 0.0)
    ticks = itertools.count()
    return Bench(target, never, KNOWN, ("ngram",), source, clock=lambda: TICK * next(ticks))


def recorder(bench: Bench, tokens: int = 24) -> Recorder:
    target = bench.target
    assert bench.draft
    template = ChatTemplate(target.chat_template, target.vocab, lambda _: None)
    return Recorder(target, template, tokens, bench.is_end, bench.draft.model, greedy=True)


@pytest.fixture
def recordings(bench: Bench) -> list[Recording]:
    return [
        recording
        for prompt in (SINGLE, SESSION)
        for temperature in (0.0, 0.8)
        for recording in recorder(bench).record(prompt, Sampling(temperature=temperature, seed=3))
    ]


def parts() -> Parts:
    return Parts(KNOWN, lambda: 0.0, ("ngram",), prior=0.9)


def made_up(text: Sequence[int], draft: Sequence[int], n_prompt: int = 1) -> Recording:
    """A recording of `text` whose draft guesses `draft[i]` at place i."""
    guesses = Guesses(text, lambda place, off: (-1 if off else draft[place], 0.9))
    return Recording("code", "one", Sampling(temperature=0.0), n_prompt, tuple(text), guesses)


def test_every_turn_of_a_session_is_a_recording_on_the_conversation_so_far(bench: Bench) -> None:
    first, second = recorder(bench).record(SESSION, Sampling(temperature=0.0))
    assert second.text[: len(first.text)] == first.text
    assert second.n_prompt > len(first.text)
    assert [len(first.emitted), first.prompt, second.prompt] == [24, "talk turn 1", "talk turn 2"]


def test_a_session_ends_where_the_context_does(bench: Bench) -> None:
    long = Prompt("long", "code", ("word " * 4000, "more"))
    assert list(recorder(bench).record(long, Sampling(temperature=0.0))) == []


def test_a_given_answer_is_the_text_of_every_run(bench: Bench) -> None:
    given = replace(SINGLE, output="one two one two one two one two")
    (recording,) = recorder(bench).record(given, Sampling(temperature=0.0))
    assert b"".join(map(bench.target.vocab.piece, recording.emitted)).decode() == given.output
    for setting in ("none", "ngram-7", "draft-2", "auto"):
        assert on_the_wall(bench, recording, setting).same
    assert len(on_the_wall(bench, recording, "ngram-7").steps) < len(recording.emitted)


def test_no_setting_changes_the_text(bench: Bench, recordings: list[Recording]) -> None:
    tables = tables_of(recordings, PRICES, parts(), never)
    for i, recording in enumerate(recordings):
        known = others(tables, recordings, i)
        found = [on_the_wall(bench, recording, name, known) for name in ALL_SETTINGS]
        assert all(measured.same for measured in found)
        assert found[2].run.drafted > 0
        assert all(measured.run.tokens == len(recording.emitted) for measured in found)


def test_a_text_that_parts_from_the_recorded_one_is_noticed(
    bench: Bench, recordings: list[Recording]
) -> None:
    wrong = replace(recordings[0], text=(*recordings[0].text[:-1], 5))
    assert not on_the_wall(bench, wrong, "none").same


def test_opening_a_draft_is_a_price_and_no_time_of_decoding(
    bench: Bench, recordings: list[Recording]
) -> None:
    plain, fixed = (on_the_wall(bench, recordings[0], name) for name in ("none", "draft-2"))
    assert plain.seconds_price == 0
    assert fixed.seconds_price == TICK  # one tick of the clock: read, before the first step
    auto = on_the_wall(bench, recordings[0], "auto")
    assert auto.seconds_price == sum(step.seconds_open for step in auto.steps) == TICK
    assert auto.seconds >= sum(step.seconds for step in auto.steps)


def test_a_draft_that_the_scheduler_loaded_is_closed(bench: Bench, recordings: list[Recording]) -> None:
    assert bench.draft
    loaded: list[LlamaModel] = []
    load = bench.draft.load

    def heard() -> LlamaModel:
        loaded.append(load())
        return loaded[-1]

    on_the_wall(replace(bench, draft=replace(bench.draft, load=heard)), recordings[0], "auto")
    assert [model.n_ctx for model in loaded] == [-1]


def test_settings_run_forwards_then_backwards() -> None:
    assert list(in_turn(["a", "b"], 3)) == ["a", "b", "b", "a", "a", "b"]


def test_plain_decoding_costs_one_pass_a_token_on_the_virtual_clock(recordings: list[Recording]) -> None:
    for recording in recordings:
        measured, _ = replay(recording, "none", PRICES, parts(), never)
        assert measured.same
        assert measured.seconds == pytest.approx(len(recording.emitted))


def test_a_draft_that_is_always_right_costs_what_the_table_says() -> None:
    text = list(range(9))
    measured, _ = replay(made_up(text, text), "draft-3", PRICES, parts(), never)
    assert [len(step.tokens) for step in measured.steps] == [4, 4]
    assert measured.seconds == pytest.approx(2 * (FLAT[4] + 0.3) + 0.1 * (FLAT[2] - 1))


def test_guesses_wider_than_the_table_are_not_made() -> None:
    text = list(range(30))
    narrow = Prices({1: 1.0, 4: 1.1}, 0.1)
    measured, _ = replay(made_up(text, text), "draft-15", narrow, parts(), never)
    assert max(step.width for step in measured.steps) == 4


def test_what_was_learnt_leaves_out_the_prompt_itself_and_the_other_kind_of_choice() -> None:
    names = [("code", "a", 0.0), ("code", "a", 0.0), ("code", "b", 0.0), ("code", "c", 0.8)]
    found = [Recording(f, p, Sampling(temperature=t), 1, (1, 2)) for f, p, t in names]
    tables = [Tables({"ngram": [[n, 10.0 * n]]}) for n in (1.0, 2.0, 4.0, 8.0)]
    assert others(tables, found, 2).free == {"ngram": [[3.0, 30.0]]}
    assert others(tables, found, 0).free == {"ngram": [[4.0, 40.0]]}


def test_warm_tables_reach_the_scheduler(recordings: list[Recording]) -> None:
    tables = tables_of(recordings, PRICES, parts(), never)
    known = others(tables, recordings, 0)
    policy = settings.make("auto-warm", replace(parts(), free=("ngram",)), known)
    assert isinstance(policy, Scheduler)
    assert settings.learnt(policy).free == {"ngram": [list(map(float, pair)) for pair in known.free["ngram"]]}
    cold = settings.make("auto", parts(), known)
    assert isinstance(cold, Scheduler)
    assert not any(trials for _, trials in settings.learnt(cold).free["ngram"])
    assert sum(trials for _, trials in known.free["ngram"]) > 0


def test_reach_counts_right_guesses_in_a_row() -> None:
    text = [1, 2, 3, 4, 1, 2, 3, 4]
    draft = [0, 2, 3, 0, 1, 2, 3, 0]
    assert reach(made_up(text, draft), ["ngram"]) == {
        "ngram": [0, 0, 0, 0, 3, 2, 1],
        "draft": [2, 1, 0, 3, 2, 1, 0],
    }


def test_what_a_run_lost_is_its_distance_to_the_oracle(recordings: list[Recording]) -> None:
    for recording in recordings:
        optimum = Optimum(reach(recording, ["ngram"]), PRICES, len(recording.emitted))
        for setting in ("none", "ngram-3", "draft-2", "auto"):
            measured, _ = replay(recording, setting, PRICES, parts(), never)
            distance = measured.seconds - optimum.after(0)
            found = lost(measured, optimum)
            assert sum(found.values()) == pytest.approx(distance)
            assert all(seconds >= -1e-9 for seconds in found.values())


def test_losses_are_told_apart() -> None:
    text = list(range(9))
    whole = Optimum({"draft": [8, 7, 6, 5, 4, 3, 2, 1], "ngram": [0] * 8}, PRICES, 8)
    recording = made_up(text, text)
    cases = {"none": "silent", "draft-1": "length"}
    for setting, cause in cases.items():
        measured, _ = replay(recording, setting, PRICES, parts(), never)
        found = lost(measured, whole)
        assert max(found, key=found.__getitem__) == cause
    repeating = [1, 2] * 8
    (wrong, _) = replay(made_up(repeating, [0] * 16), "draft-3", PRICES, parts(), never)
    found = lost(wrong, Optimum(reach(made_up(repeating, [0] * 16), ["ngram"]), PRICES, 15))
    assert max(found, key=found.__getitem__) == "source"


def test_scores_are_those_of_the_replay_or_of_the_wall() -> None:
    text = list(range(41))
    recording = made_up(text, text)
    found = replays([recording], JUDGED, PRICES, parts(), never)
    optimum = Optimum(reach(recording, ["ngram"]), PRICES, 40)
    row, everything = compare.scores([optimum], found, ["code"], {})
    assert row["auto"] == pytest.approx(40 / found["auto"][0].seconds)
    assert row["oracle"] == pytest.approx(oracle.plain(40, FLAT) / optimum.after(0))
    assert row["alone"] == {"ngram": 1.0, "draft": row["oracle"]}
    assert {**everything, "family": "code"} == row
    row, _ = compare.scores([optimum], found, ["code"], {"code": 2.0})
    assert row["auto"] == pytest.approx(2.0)
    assert row["auto_over_oracle"] == pytest.approx(2.0 / row["oracle"])


def test_no_share_of_next_to_nothing() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    recording = made_up(text, [0] * 8)
    found = replays([recording], JUDGED, PRICES, parts(), never)
    row, _ = compare.scores([Optimum(reach(recording, ["ngram"]), PRICES, 7)], found, ["code"], {})
    assert (row["oracle"], row["gain_share"]) == (1.0, None)


def test_a_draft_that_cannot_be_loaded_ends_the_benchmark(bench: Bench, recordings: list[Recording]) -> None:
    assert bench.draft

    def broken() -> LlamaModel:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        on_the_wall(replace(bench, draft=replace(bench.draft, load=broken)), recordings[0], "auto")


def test_tables_of_all_clocks(bench: Bench, recordings: list[Recording]) -> None:
    names = ["none", "ngram-3", "auto", "auto-warm"]
    wall_0, wall_8, curve_0, curve_8 = outcomes_of(bench, recordings, names, PRICES, {"flat": PRICES}, 2)
    assert [wall_0.temperature, wall_8.temperature] == [0.0, 0.8]
    assert [o.as_dict()["clock"] for o in (wall_0, curve_0)] == ["wall", "modelled"]
    assert len(wall_0.measured) == 3 * 4 * 2
    assert len(curve_8.measured) == 3 * 4
    told = json.loads(json.dumps([o.as_dict() for o in (wall_0, curve_0)], allow_nan=False))
    assert [row["family"] for row in told[0]["scores"]] == ["code", "mixed", "all"]
    assert {row["setting"] for row in told[1]["rows"]} == set(names)
    assert told[1]["best_fixed"]["all"][0] in ("none", "ngram-3")


def test_a_bench_takes_the_scheduler_apart(bench: Bench, draft_path: Path) -> None:
    assert bench.draft
    target, draft = bench.target, bench.draft.model

    def load() -> ModelDrafter:
        return ModelDrafter("draft", draft, Sampler(Sampling()), target.n_vocab, never)

    cost = DraftCost(3.0, KNOWN)
    costly = Costly(LazyDrafter("draft", load, 0.25), cost, prior=0.6)
    policy = Scheduler(PassCosts(KNOWN), [Free(settings.NAMED["ngram"]())], [costly], lambda: 0.0)
    loaded: Any = SimpleNamespace(target=target, generator=SimpleNamespace(policy=policy))
    made = run.make_bench(loaded)
    assert made.free == ("ngram",)
    assert made.known == KNOWN
    assert made.draft
    assert (made.draft.prior, made.draft.seconds_load) == (0.6, 0.25)
    assert made.draft.cost.reading(5) == cost.reading(5) > 0
    again = made.draft.load()
    assert (again.path, again is draft) == (draft_path, False)
    again.close()
    policy.costly[0].cost.guess = 9.0
    assert made.draft.cost.guess == 3.0


@pytest.mark.parametrize("name", ["draft-2", "ngram-0", "ngram-64", "ngram", "hybrid", "autos", ""])
def test_settings_without_their_source_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no setting"):
        settings.check([name], ["ngram"], draft=False)


def test_usual_settings_are_settings() -> None:
    names = settings.defaults(["ngram"], draft=True, greedy=True)
    settings.check(names, ["ngram"], draft=True)
    expected = ["none", "ngram-3", "ngram-7", "ngram-15", "draft-2", "draft-4", "hybrid", "greedy-4"]
    assert names == [*expected, "auto", "auto-warm"]


def test_curves_are_relative_to_a_single_pass(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text('{"_remark": "x", "m": {"T": {"2": 3, "1": 2.0}, "draft": 0.2, "kind": "assumed"}}')
    assert read_curves(str(path)) == {"m": Prices({1: 1.0, 2: 1.5}, 0.2)}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "x",
        '{"m": {"T": {"1": 1}}}',
        '{"m": {"T": {"2": 1}, "draft": 0.1}}',
        '{"m": {"T": {"1": 1, "x": 2}, "draft": 0.1}}',
        '{"m": {"T": {"1": 0}, "draft": 0.1}}',
        '{"m": {"T": {"1": 1, "65": 2}, "draft": 0.1}}',
        '{"m": {"T": {"1": 1}, "draft": NaN}}',
        '{"m": {"T": {}, "draft": 1}}',
    ],
)
def test_files_without_curves_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "curves.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"curves\.json"):
        read_curves(str(path))


def test_what_a_machine_waits_for() -> None:
    memory = waits({1: 2.0, 2: 2.2, 4: 2.7, 8: 2.6, 16: 4.0})
    assert (memory.what, memory.width, memory.cost) == ("memory", 8, 1.3)
    assert "memory up to 8 tokens" in memory.sentence
    assert "16 tokens cost 2.00" in memory.sentence
    assert waits({1: 1.0, 2: 1.9}).sentence == (
        "This machine waits for arithmetic: 2 tokens cost 1.90 single passes."
    )
    assert waits({1: 1.0}).what == "arithmetic"


def test_pictures_show_the_schedulers_runs(recordings: list[Recording]) -> None:
    measured: list[Measured] = [replay(r, "auto", PRICES, parts(), never)[0] for r in recordings]
    shown = picture.text(PRICES, measured, 80)
    for title in ("Cost of one pass", "Speed-up", "Share of time", "Passes by tokens", "Acceptance"):
        assert title in shown


@pytest.fixture
def command(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs `localspec bench` on the tiny model: exit code, stdout, stderr."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a list", "family": "code"}\n{"turns": ["say it", "again"]}\n')
    forced = tmp_path / "forced.jsonl"
    forced.write_text('{"prompt": "a list", "output": "one two one two one two"}\n')

    def invoke(*arguments: str) -> tuple[int, str, str]:
        usual = ["-m", str(tiny_path), "--tokens", "12", "-t", "1", "--ctx", "256", "--draft", "ngram"]
        paths = {"PROMPTS": str(prompts), "FORCED": str(forced)}
        given = [paths.get(argument, argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["localspec", "bench", *usual, *given])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return invoke


def test_the_command_takes_a_draft_and_draws_a_picture(
    command: Any, draft_path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture_path, greedy = tmp_path / "bench.png", f"ngram,{draft_path}@greedy"
    code, out, err = command("--prompts", "PROMPTS", "--draft", greedy, "--json", "--png", str(picture_path))
    assert (code, picture_path.read_bytes()[:4]) == (0, b"\x89PNG"), err
    found = json.loads(out, parse_constant=no_constant)
    assert found["settings"][-3:] == ["greedy-4", "auto", "auto-warm"]
    assert (found["draft"], found["seconds_guess"] > 0) == (str(draft_path), True)
    assert [t["temperature"] for t in found["tables"]] == [0.0, 0.8]
    alone = found["tables"][0]["scores"][0]["alone"]
    assert set(alone) == {"ngram", "draft"}


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_the_command_prints_one_json_object(command: Any, tmp_path: Path) -> None:
    curves = tmp_path / "curves.json"
    curves.write_text('{"flat": {"T": {"1": 1.0, "8": 1.1}, "draft": 0.1}}')
    code, out, _ = command("--prompts", "PROMPTS", "--json", "--curves", str(curves), "--temps", "0")
    found = json.loads(out, parse_constant=no_constant)
    assert code == 0
    assert found["settings"] == ["none", "ngram-3", "ngram-7", "ngram-15", "auto", "auto-warm"]
    assert (found["prompts"], found["skipped"], found["draft"]) == (3, 0, None)
    assert [(t["clock"], t["curve"]) for t in found["tables"]] == [("wall", None), ("modelled", "flat")]
    assert found["waits"]["for"] in ("memory", "arithmetic")
    assert [row["family"] for row in found["tables"][0]["scores"]] == ["code", "prompts", "all"]


def test_the_command_prints_tables_and_takes_given_answers(command: Any) -> None:
    code, out, _ = command("--force", "FORCED", "--settings", "ngram-7,auto", "--repeats", "1")
    assert code == 0
    assert out.startswith("This machine waits for ")
    assert "## Temperature 0, wall clock" in out
    assert "| family | none | ngram-7 | auto |" in out
    assert "Temperature 0.8" not in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--prompts", "PROMPTS", "--force", "FORCED"], "--prompts and --force"),
        (["--prompts", "PROMPTS", "--family", "chat"], "no prompt is left"),
        (["--prompts", "PROMPTS", "--settings", "draft-4"], "no setting 'draft-4'"),
        (["--prompts", "PROMPTS", "--temps", "0,x"], "--temps"),
        (["--prompts", "PROMPTS", "--draft", "none"], "nothing guesses"),
        (["--family", "poems"], "no prompts of family"),
        (["--prompts", "PROMPTS", "--curves", "/missing.json"], "cannot read"),
    ],
)
def test_the_command_refuses(command: Any, arguments: list[str], complaint: str) -> None:
    code, out, err = command(*arguments)
    assert code in (1, 2)
    assert complaint in err
    assert out == ""


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that measures what the scheduler promises."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    return importlib.import_module("schedule_gates")


def test_passes_of_a_fixed_length(gates: Any) -> None:
    assert gates.passes([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 4) == 2
    assert gates.passes([0, 0, 0], 4) == 3
    assert gates.passes([1, 0, 5, 4, 3], 2) == 2


def test_gates_choose_on_one_half_and_compare_on_the_other(
    gates: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {"none": 10.0, "ngram-3": 9.0, "draft-4": 7.0, "auto": 7.1}

    def runs(prompt: str, *, chooses: bool, **changed: float) -> list[Any]:
        times = {**seconds, **{name.replace("_", "-"): s for name, s in changed.items()}}
        return [
            gates.Half(Run("code", prompt, setting, 100, s, 0.0, 50, 0, 0), chooses)
            for setting, s in times.items()
        ]

    good = [*runs("a", chooses=True), *runs("b", chooses=False, ngram_3=1.0)]
    gates.judge_wall("f16", tuple(seconds), good)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok") and "code: auto / draft-4" in line and "0.986" in line for line in lines)
    gates.judge_wall("f16", tuple(seconds), [*runs("a", chooses=True), *runs("b", chooses=False, auto=11.0)])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("MISS") and "code: auto / draft-4" in line for line in lines)


def test_the_schedulers_own_time_leaves_out_its_drafters(gates: Any, recordings: list[Recording]) -> None:
    own_time = importlib.import_module("own_time")
    recording = recordings[0]
    steps = own_time.own_seconds(recording, PRICES)
    measured, _ = replay(recording, "auto", PRICES, parts(), never)
    assert len(steps) == len(measured.steps)
    assert all(0 < seconds < 1 for seconds in steps)
    watch = own_time.Stopwatch()
    policy = own_time.WatchedPolicy(None, watch)

    def slow() -> None:
        watch.seconds += 100.0

    assert policy._own(slow)[1] < -99
