"""From settings and what earlier sessions learnt to the policy of a run, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tables import TableModel

from localspec.config import Settings
from localspec.drafters import LazyDrafter, ModelDrafter, NgramDrafter
from localspec.engine.chances import BINS, MIDDLES
from localspec.engine.cost import PassCosts
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Sampling
from localspec.errors import UsageError
from localspec.learned import Learned
from localspec.policy import (
    DraftModel,
    count_key,
    draft_model,
    draft_names,
    fixed,
    measure,
    remember,
    scheduler,
)

GREEDY, SAMPLED = Settings(temp=0.0), Settings(temp=0.8)
COSTS = {1: 0.01, 2: 0.013, 4: 0.016, 8: 0.02}


def never(_token: int) -> bool:
    return False


def twin() -> ModelDrafter:
    sampler = Sampler(Sampling(temperature=0.0))
    return ModelDrafter("draft", TableModel(seed=1, n_vocab=12, order=2), sampler, 12, never)


def unloadable() -> ModelDrafter:
    raise AssertionError("loaded")


def draft(load: Callable[[], ModelDrafter] = unloadable) -> DraftModel:
    return DraftModel("small Q4_0", load, seconds_to_load=0.5, share=0.2, right=0.8)


def piece(token: int) -> bytes:
    return b"\n```py" if token == 7 else b"word"


def silent(error: Exception) -> None:
    raise error


def made(
    settings: Settings, learned: Learned, names: Sequence[str] = ("ngram",), small: DraftModel | None = None
) -> Scheduler:
    return scheduler(settings, names, small, PassCosts(COSTS), learned, piece, silent)


# What --draft says.


@pytest.mark.parametrize(
    ("text", "names", "model"),
    [
        ("auto", ["auto"], None),
        ("none", [], None),
        ("ngram", ["ngram"], None),
        ("self", ["self"], None),
        ("ngram,self", ["ngram", "self"], None),
        (" ngram , small.gguf ", ["ngram", "small.gguf"], "small.gguf"),
        ("small.gguf", ["small.gguf"], "small.gguf"),
        ("org/repo:Q4_0,ngram", ["org/repo:Q4_0", "ngram"], "org/repo:Q4_0"),
    ],
)
def test_draft_names(text: str, names: list[str], model: str | None) -> None:
    assert draft_names(text) == names
    assert draft_model(text) == model


@pytest.mark.parametrize(
    "text",
    ["", " , ", "auto,ngram", "none,ngram", "ngram,ngram", "a.gguf,b.gguf", "self,a.gguf", "5", " 12 "],
)
def test_contradictory_draft_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        draft_names(text)


def test_a_number_is_a_length_not_a_name() -> None:
    with pytest.raises(UsageError) as error:
        draft_names("8")
    assert "--draft-len 8" in str(error.value) + str(error.value.hint)


# Fixed lengths.


def test_fixed_lengths() -> None:
    policy = fixed(["ngram", "small"], draft(twin), 5)
    assert isinstance(policy, Fixed)
    assert [source.limit for source in policy.sources] == [5, 5]
    assert [type(source.drafter) for source in policy.sources] == [NgramDrafter, ModelDrafter]
    attempt = policy.draft([1, 2, 3, 1, 2], 20)
    assert (attempt.source, list(attempt.proposal.tokens)) == ("ngram", [3, 1, 2, 3, 1])


def test_fixed_lengths_without_a_draft_or_any_source() -> None:
    assert [source.drafter.name for source in fixed(["ngram", "small"], None, 5).sources] == ["ngram"]  # type: ignore[attr-defined]
    assert fixed([], None, 5).draft([1, 2, 1], 20).proposal.tokens == ()


# The scheduler.


def test_the_scheduler_has_the_sources_named_and_loads_nothing() -> None:
    policy = made(SAMPLED, Learned.of("f"), small=draft())
    assert [source.drafter.name for source in policy.free] == ["ngram"]
    [costly] = policy.costly
    assert isinstance(costly.drafter, LazyDrafter)
    assert costly.drafter.seconds_to_load == 0.5
    assert costly.cost.guess == pytest.approx(0.2 * COSTS[1])
    assert policy.costs.known() == COSTS
    assert not made(SAMPLED, Learned.of("f"), names=["self"]).free
    assert not made(SAMPLED, Learned.of("f")).costly


@pytest.mark.parametrize("second", [0.005, 0.01, 0.1])
def test_reading_costs_what_wider_passes_cost_here(second: float) -> None:
    costs = PassCosts({1: 0.01, 2: second})
    [costly] = scheduler(SAMPLED, [], draft(), costs, Learned.of("f"), piece, silent).costly
    assert costly.cost.reading(2) == pytest.approx(max(0.0, 0.2 * (second - 0.01)))


def test_guesses_are_drawn_only_where_rejection_has_something_to_reject() -> None:
    learned = Learned.of("f")
    assert made(Settings(accept="rejection", temp=0.8), learned).drawn
    assert not made(Settings(accept="rejection", temp=0.0), learned).drawn
    assert not made(SAMPLED, learned).drawn


def test_a_code_fence_wakes() -> None:
    policy = made(SAMPLED, Learned.of("f"))
    assert policy.wakes(7)
    assert not policy.wakes(8)


def test_greedy_and_drawn_choices_are_counted_apart() -> None:
    assert count_key(GREEDY, "ngram") != count_key(SAMPLED, "ngram")
    assert count_key(Settings(temp=0.3), "ngram") == count_key(SAMPLED, "ngram")
    assert count_key(SAMPLED, "ngram") != count_key(SAMPLED, "ngram", "agreed")


def taught(policy: Scheduler) -> Scheduler:
    """After it has seen that half of all guesses are right."""
    counters = [source.chances for source in policy.free]
    counters += [table for costly in policy.costly for table in costly.tables.values()]
    for counter in counters:
        for middle in MIDDLES:
            for i in range(60):
                counter.learn(middle, i % 2 == 0)
    return policy


def test_what_a_session_learnt_is_there_in_the_next() -> None:
    learned = Learned.of("f")
    policy = taught(made(GREEDY, learned, small=draft()))
    for _ in range(20):
        policy.costs.observe(1, 0, 0.012)
    remember(policy, "cpu", draft(), GREEDY, learned)

    again = Learned.of("f")
    assert again.costs["cpu"] == pytest.approx(policy.costs.known())
    later = made(GREEDY, again, small=draft())
    [costly] = later.costly
    for counter in (later.free[0].chances, *costly.tables.values()):
        assert counter.counts() == [[30.0, 60.0]] * BINS
        assert abs(counter.rate(0.99) - 0.5) < 0.2
    assert made(SAMPLED, again).free[0].chances.counts() == [[0.0, 0.0]] * BINS
    assert made(GREEDY, Learned.of("another target")).free[0].chances.rate(0.99) > 0.98


def test_counts_belong_to_the_draft_model() -> None:
    learned = Learned.of("f")
    remember(taught(made(GREEDY, learned, small=draft())), "cpu", draft(), GREEDY, learned)
    other = DraftModel("other", unloadable, 0.5, 0.2, 0.8)
    [costly] = made(GREEDY, Learned.of("f"), small=other).costly
    assert all(table.counts() == [[0.0, 0.0]] * BINS for table in costly.tables.values())


def test_remembering_without_a_draft() -> None:
    learned = Learned.of("f")
    remember(taught(made(GREEDY, learned)), "cpu", None, GREEDY, learned)
    assert set(Learned.of("f").counts) == {count_key(GREEDY, "ngram")}


def test_the_policy_decodes() -> None:
    """All parts as the program joins them, on a model that is a table."""
    target = TableModel(seed=1, n_vocab=12, n_ctx=200, order=2)
    sampler = Sampler(Sampling(temperature=0.0))
    plain = [t for s in Generator(target, sampler, never).generate([1, 2], 150) for t in s.tokens]
    target.rewind(0)
    policy = made(GREEDY, Learned.of("f"), small=draft(twin))
    text = [t for s in Generator(target, sampler, never, policy).generate([1, 2], 150) for t in s.tokens]
    assert text == plain


# What passes cost.


def test_costs_are_measured_once() -> None:
    model, learned = TableModel(n_ctx=100), Learned.of("f")
    first = measure(model, "cpu", learned)
    assert first.fresh > 0
    assert 1 in first.costs.known()
    assert max(model.widths) <= 64
    assert model.tokens == []
    passes = len(model.widths)
    second = measure(model, "cpu", learned)
    assert second.fresh == 0
    assert second.costs.known() == first.costs.known() == learned.costs["cpu"]
    assert len(model.widths) == passes
    assert measure(model, "gpu", learned).fresh > 0


@pytest.mark.parametrize("n_ctx", [1, 5, 40])
def test_no_pass_is_wider_than_the_context(n_ctx: int) -> None:
    model = TableModel(n_ctx=n_ctx)
    measure(model, "cpu", Learned.of("f"))
    assert max(model.widths) <= n_ctx


def test_only_the_widths_allowed_are_measured_and_offered() -> None:
    model = TableModel(n_ctx=100)
    measured = measure(model, "cpu", Learned.of("f"), widths=(1, 4, 16))
    assert set(measured.costs.known()) <= {1, 4, 16}
    assert set(model.widths) <= {1, 4, 16}
    remembered = Learned.of("f")
    remembered.costs["cpu"] = {1: 1.0, 2: 1.1, 4: 1.2}
    assert set(measure(model, "cpu", remembered, widths=(1, 4)).costs.known()) == {1, 4}
