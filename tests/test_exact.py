"""`--exact`: a cache type and widths that are proven, no others, and the text of `--exact --draft none`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tables import TableModel, hostile, plain_text

from localspec import config
from localspec.app import Loaded, open_target
from localspec.config import Settings
from localspec.drafters import NgramDrafter
from localspec.engine.cost import CALIBRATION_SECONDS, LADDER, PassCosts
from localspec.engine.exactness import N_CACHED, Setup
from localspec.engine.generate import Fixed, Generator
from localspec.engine.proven import (
    LEAST_CONTEXT,
    PLAIN,
    ROWS,
    WIDTHS,
    Proof,
    ProvenOnly,
    can_prove,
    prove,
    search,
    seconds_to_prove,
)
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Attempt, Logits, Model, Proposal, Sampling, Source, Step
from localspec.errors import UsageError
from localspec.learned import Learned
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel
from localspec.loading import Hear
from localspec.models.facts import read_model
from localspec.policy import measure

SAMPLER = Sampler(Sampling(seed=4))
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
F16, BF16, Q8_0 = ("f16", "auto"), ("bf16", "on"), ("q8_0", "on")


@dataclass
class Wobbly(TableModel):
    """Passes over `wide` tokens or more, or behind `deep` tokens over more than one, are off a little."""

    wide: int = 1000
    deep: int = 10_000
    every: int = 1
    """Only of the passes that end behind a multiple of this many tokens."""

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        length = len(self.tokens)
        logits = TableModel.eval(self, tokens, rows)
        hit = len(tokens) >= self.wide or (len(tokens) > 1 and length >= self.deep)
        if rows and hit and len(self.tokens) % self.every == 0:
            logits[-1, 0] = np.nextafter(logits[-1, 0], np.float32(np.inf))
        return logits


def wobbly(**options: Any) -> Wobbly:
    return Wobbly(**{"seed": 1, "n_vocab": 30, "n_ctx": LEAST_CONTEXT, "order": 2, **options})


# Proofs


@pytest.mark.parametrize(
    ("model", "deep", "shallow", "final"),
    [
        (wobbly(), WIDTHS, WIDTHS, True),
        (wobbly(wide=4), (1, 2, 3), (1, 2, 3), True),  # no cache type will mend that
        (wobbly(wide=2), PLAIN, PLAIN, True),
        (wobbly(deep=512), PLAIN, WIDTHS, False),
        (wobbly(wide=16, deep=N_CACHED), PLAIN, WIDTHS[:9], False),
        (wobbly(deep=N_CACHED + ROWS), WIDTHS, WIDTHS, True),  # behind the proof: not seen
        (wobbly(wide=2, every=24), (1, 5, 7, 32), (1, 5, 7, 32), True),  # not in the first pass
    ],
)
def test_a_proof_looks_near_and_far(
    model: Wobbly, deep: tuple[int, ...], shallow: tuple[int, ...], final: bool
) -> None:
    assert can_prove(model)
    proof = prove(model)
    assert (proof.deep, proof.shallow, proof.final) == (deep, shallow, final)
    assert model.tokens == []


def test_a_short_context_proves_nothing() -> None:
    assert not can_prove(wobbly(n_ctx=LEAST_CONTEXT - 1))


def found_by(proofs: dict[Setup, Proof | None], known: Sequence[Setup] = ()) -> tuple[Any, list[Setup]]:
    """What `search` finds, and which setups it opened. A proof of None: cannot be opened."""
    opened: list[Setup] = []
    kept: dict[Setup, Proof] = {}

    @contextmanager
    def open_model(setup: Setup) -> Iterator[Model | None]:
        opened.append(setup)
        proof = proofs[setup]
        exact = {Proof(WIDTHS, WIDTHS): {}, Proof((1, 2, 3), (1, 2, 3)): {"wide": 4}, Proof(): {"wide": 2}}
        yield wobbly(**exact.get(proof, {"deep": 512})) if proof else None

    def remember(setup: Setup) -> Proof | None:
        return proofs[setup] if setup in known else None

    found = search(proofs, remember, open_model, kept.__setitem__)
    assert kept == {setup: proofs[setup] for setup in opened if proofs[setup]}
    return found, opened


ALL, SOME, SHALLOW_ONLY, NONE = (
    Proof(WIDTHS, WIDTHS),
    Proof((1, 2, 3), (1, 2, 3)),
    Proof(PLAIN, WIDTHS),
    Proof(),
)


@pytest.mark.parametrize(
    ("proofs", "found", "opened"),
    [
        ({F16: ALL, BF16: ALL}, (F16, WIDTHS), 1),
        ({F16: SHALLOW_ONLY, BF16: ALL, Q8_0: ALL}, (BF16, WIDTHS), 2),
        ({F16: SOME, BF16: ALL}, (F16, SOME.deep), 1),  # the weights are the reason
        ({F16: None, BF16: ALL}, (BF16, WIDTHS), 2),
        ({F16: SHALLOW_ONLY, BF16: SHALLOW_ONLY}, None, 2),
        ({F16: NONE, BF16: NONE}, None, 1),
        ({F16: None}, None, 1),
        ({F16: SHALLOW_ONLY, BF16: None, Q8_0: SOME}, (Q8_0, SOME.deep), 3),
    ],
)
def test_search_takes_the_first_that_serves_best(
    proofs: dict[Setup, Proof | None], found: Any, opened: int
) -> None:
    assert found_by(proofs) == (found, list(proofs)[:opened])
    known = [setup for setup, proof in proofs.items() if proof]
    assert found_by(proofs, known)[0] == found, "remembered or made: the choice is the same"
    assert not set(found_by(proofs, known)[1]) & set(known)


# The policy


@pytest.mark.parametrize("widths", [(1, 2, 3), (1, 4, 8, 24), (1, 32), PLAIN])
def test_passes_have_proven_widths_only(widths: tuple[int, ...]) -> None:
    """Whatever the sources guess, and up to the context's end; the text is that of plain decoding."""
    made = 0
    for length in (60, 4):
        target = TableModel(seed=1, n_vocab=30, n_ctx=60, order=2, end=5, end_bias=-3.0)
        plain = plain_text(target, SAMPLER, PROMPT, length)
        for drafter in (*hostile(target, SAMPLER), NgramDrafter()):
            target.rewind(0)
            target.widths.clear()
            policy = ProvenOnly(Fixed([Source(drafter, 31)]), widths)
            generator = Generator(target, SAMPLER, target.is_end, policy)
            text = [token for step in generator.generate(PROMPT, length) for token in step.tokens]
            assert text == plain, drafter.name
            assert set(target.widths) <= set(widths), drafter.name
            made += sum(width > 1 for width in target.widths)
    assert (made > 20) is (widths != PLAIN), "and something is guessed where that is allowed"


@dataclass
class Says:
    """A policy that wants one thing."""

    attempt: Attempt
    rooms: list[int]

    def begin(self, context: Sequence[int]) -> None: ...

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        self.rooms.append(room)
        return self.attempt

    def plain(self, n_cached: int) -> float:
        return 0.5

    def learn(self, step: Step, n_cached: int) -> None: ...


@pytest.mark.parametrize(
    ("guesses", "wanted", "room", "kept", "width"),
    [
        (0, 1, 63, 0, 1),
        (2, 3, 63, 2, 4),  # padded up
        (3, 4, 63, 3, 4),
        (3, 8, 63, 3, 8),  # the policy pads itself
        (20, 21, 63, 7, 8),  # cut
        (3, 4, 2, 0, 1),  # no room for the next proven width
        (3, 4, 0, 0, 1),
    ],
)
def test_padded_up_or_cut(guesses: int, wanted: int, room: int, kept: int, width: int) -> None:
    proposal = Proposal(list(range(guesses)), [0.5] * guesses)
    inner = Says(Attempt("x", proposal, wanted), [])
    attempt = ProvenOnly(inner, (1, 4, 8)).draft(PROMPT, room)
    assert attempt.proposal == Proposal(list(range(kept)), [0.5] * kept)
    assert (attempt.width, attempt.source) == (width, "x")
    assert inner.rooms == [max(0, min(7, {2: 0, 0: 0}.get(room, 7)))]


# At the first load


def test_a_quick_model_is_proven_while_it_is_measured() -> None:
    learned = Learned.of("x")
    measure(wobbly(), "here", learned)
    assert learned.proof("here") == Proof(WIDTHS, WIDTHS)
    measure(wobbly(n_ctx=LEAST_CONTEXT - 1), "short", learned)
    assert learned.proof("short") is None


def test_what_a_proof_takes() -> None:
    costs = dict.fromkeys(LADDER, 0.01)
    passes = sum(48 // n for n in WIDTHS)
    assert seconds_to_prove(costs) == pytest.approx(0.01 * (600 / 32 + 2 * passes))
    assert seconds_to_prove({1: 0.01}) > CALIBRATION_SECONDS, "not known: not tried"


# The setting


@pytest.mark.parametrize(("text", "exact"), [("1", True), ("Yes", True), ("0", False), ("off", False)])
def test_exact_by_variable(monkeypatch: pytest.MonkeyPatch, text: str, exact: bool) -> None:
    monkeypatch.setenv("LOCALSPEC_EXACT", text)
    assert config.load({}).exact is exact
    assert config.load({"exact": True}).exact
    monkeypatch.setenv("LOCALSPEC_EXACT", "perhaps")
    with pytest.raises(UsageError, match="LOCALSPEC_EXACT is 'perhaps'"):
        config.load({})


def test_exact_by_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("exact = true\n")
    assert config.load({}, path).exact
    for value in ("1", '"yes"'):
        path.write_text(f"exact = {value}\n")
        with pytest.raises(UsageError) as error:
            config.load({}, path)
        assert error.value.hint == "give true or false"


# A whole run


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model that does not stop by itself, in F32 and as quantised copies, and a draft for it."""
    folder = tmp_path_factory.mktemp("exact")
    f32 = tiny.write_llama(folder / "f32.gguf", end_bias=-30.0)
    kinds = {kind: tiny.quantize(f32, folder / f"{kind}.gguf", kind) for kind in ("Q8_0", "Q4_0")}
    return {"F32": f32, **kinds}


@dataclass
class Clocked:
    """A model on whose clock every pass takes a second, so that guessing always pays."""

    inner: LlamaModel
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        self.now += rows > 0
        return self.inner.eval(tokens, rows)


def guess_eagerly(loaded: Loaded) -> None:
    """Let the scheduler believe that the widest passes cost what single ones do."""
    policy, clock = loaded.generator.policy, Clocked(loaded.target)
    if isinstance(policy, Scheduler):
        policy.costs = PassCosts(dict.fromkeys(LADDER, 1.0), widths=policy.costs.ladder)
        policy.clock = loaded.generator.clock = clock
        loaded.generator.model = clock


@dataclass
class Run:
    text: list[int]
    widths: set[int]
    sources: set[str]
    loaded: Loaded
    notes: list[str]


def run(
    path: Path, prompt: str = "the cat and the dog and the cat and", tokens: int = 60, **given: Any
) -> Run:
    """One answer under `--exact`, which does not end before its last token."""
    settings = Settings(**{"exact": True, "threads": 1, "seed": 3, "ctx": 1024, "draft": "ngram", **given})
    draft = settings.draft.split(",")[-1]
    file = Path(draft) if draft.endswith(".gguf") else None
    notes: list[str] = []
    with open_target(settings, path, file, cancel=CancelFlag(), hear=Hear(note=notes.append)) as loaded:
        loaded.generator.is_end = lambda _token: False
        guess_eagerly(loaded)
        ids = loaded.target.vocab.tokenize(prompt, special=False)
        steps = list(loaded.generator.generate(ids, tokens))
    text = [token for step in steps for token in step.tokens]
    return Run(text, {step.width for step in steps}, {step.source for step in steps}, loaded, notes)


def test_all_widths_of_a_quantised_model(small: dict[str, Path]) -> None:
    """Proven once; afterwards known. Whoever guesses, the text is the same."""
    plain = run(small["Q8_0"], draft="none")
    assert plain.widths == {1}
    assert [note for note in plain.notes if "proving" in note], "said where it takes its time"
    for draft, length in (
        ("auto", None),
        ("ngram", 7),
        (f"ngram,{small['Q4_0']}", None),
        (f"ngram,{small['Q4_0']}", 5),
    ):
        found = run(small["Q8_0"], draft=draft, draft_len=length)
        assert found.text == plain.text, (draft, length)
        assert found.sources != {"none"}, (draft, length)
        assert found.widths <= set(WIDTHS)
        assert found.loaded.guessers.widths == WIDTHS
        assert found.notes == []
        assert found.loaded.target.options.kv_type == "f16"


@pytest.mark.parametrize("given", [{}, {"draft_len": 9}])
def test_no_pass_is_wider_than_proven(small: dict[str, Path], given: dict[str, Any]) -> None:
    """As if this were a model whose kernels agree up to three tokens."""
    first = run(small["Q8_0"], tokens=1)
    learned = Learned.of(read_model(small["Q8_0"]).fingerprint)
    learned.exact = {conditions: [1, 2, 3] for conditions in learned.exact}
    learned.save()
    found = run(small["Q8_0"], draft=f"ngram,{small['Q4_0']}", **given)
    assert found.widths <= {1, 2, 3}
    assert max(found.widths) > 1
    assert found.text[:1] == first.text


def test_a_model_that_cannot_is_told_so(small: dict[str, Path]) -> None:
    found = run(small["F32"], draft=f"ngram,{small['Q4_0']}")
    assert found.widths == {1}
    assert sum("do not compute the same" in note for note in found.notes) == 1
    assert found.text == run(small["F32"], draft="none").text
    again = run(small["F32"])
    assert not [note for note in again.notes if "proving" in note]
    assert [note for note in again.notes if "do not compute the same" in note]


def test_a_short_context_is_told_so(small: dict[str, Path]) -> None:
    found = run(small["Q8_0"], ctx=512)
    assert found.widths == {1}
    (note,) = found.notes
    assert str(LEAST_CONTEXT) in note
    assert "nothing is guessed" in note
    run(small["Q8_0"])
    assert run(small["Q8_0"], ctx=512).widths == {1}, "also when it was proven in a longer one"


@pytest.mark.parametrize("given", [{"flash_attn": "off"}, {"kv_type": "f16", "flash_attn": "off"}])
def test_who_asks_for_a_cache_gets_no_other(small: dict[str, Path], given: dict[str, str]) -> None:
    found = run(small["Q8_0"], **given)
    options = found.loaded.target.options
    assert options.flash_attn == "off"
    assert options.kv_type == given.get("kv_type", options.kv_type)
    assert found.text == run(small["Q8_0"], draft="none", **given).text


def test_a_cache_type_that_was_asked_for_is_proven(small: dict[str, Path]) -> None:
    found = run(small["Q8_0"], kv_type="bf16")
    assert found.loaded.target.options.kv_type == "bf16"
    assert found.loaded.guessers.widths == WIDTHS


def test_rejection_is_refused(small: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="--exact"):
        run(small["Q8_0"], accept="rejection")
    assert run(small["Q8_0"], accept="rejection", temp=0.0).text


@pytest.mark.slow
def test_two_threads_take_another_cache(small: dict[str, Path]) -> None:
    """From 512 cells on two threads share a row of an F16 cache, which changes its sums."""
    found = run(small["Q8_0"], threads=2)
    assert found.loaded.target.options.kv_type == "bf16"
    assert found.loaded.guessers.widths == WIDTHS
    assert sum("proving" in note for note in found.notes) == 2
    assert run(small["Q8_0"], threads=2, draft="none").text == found.text


LONG = "Repeat the list. " + "hammer, saw, drill, level, chisel, plane, rasp, " * 36
"""Past 512 tokens."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_real_model(real_model: Path, real_copy: Callable[[str], Path], kind: str) -> None:
    """The 135M model past 512 tokens of context: the scheduler's text is that of plain decoding.

    With one thread; `scripts/exact_gate.py` does it with two, which wait for each other beside other tests.
    """
    path = real_model if kind == "Q4_1" else real_copy(kind)
    plain = run(path, LONG, 100, draft="none")
    found = run(path, LONG, 100, draft="auto")
    assert found.text == plain.text
    assert max(found.widths) > 1


@pytest.mark.slow
def test_real_model_that_cannot(real_copy: Callable[[str], Path]) -> None:
    found = run(real_copy("F16"), tokens=5)
    assert found.widths == {1}
    assert [note for note in found.notes if "do not compute the same" in note]
