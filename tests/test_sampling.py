"""The chain against one written token by token, the noise against uniform, and both against chance.

`tables.chain` is the reference for the law of one token, `tables.joint_law` for a text. Random numbers come
from fixed seeds: a failure is never luck.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tables import TableModel, chain, joint_law

from localspec.drafters.model import ModelDrafter
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import RandomDice, Sampler, argmax, gumbel, top
from localspec.engine.types import BadLogits, Dist, Logits, Sampling, Source

OFF = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CHAINS = {
    "off": OFF,
    "cold": Sampling(0.01, 0, 1.0, 0.0),
    "hot": Sampling(5.0, 0, 1.0, 0.0),
    "greedy": Sampling(0.0),
    "top-k": Sampling(1.0, 3, 1.0, 0.0),
    "top-k 1": Sampling(1.0, 1, 1.0, 0.0),
    "top-k of everything": Sampling(1.0, 100_000, 0.9, 0.05),
    "top-p": Sampling(0.7, 0, 0.8, 0.0),
    "top-p of little": Sampling(1.0, 0, 1e-9, 0.0),
    "top-p of nearly all": Sampling(1.0, 0, 1 - 1e-12, 0.0),
    "min-p": Sampling(1.3, 0, 1.0, 0.1),
    "min-p 1": Sampling(1.0, 0, 1.0, 1.0),
    "top-k, top-p": Sampling(1.0, 5, 0.6, 0.0),
    "top-p, min-p": Sampling(1.0, 0, 0.95, 0.02),
    "repeat": Sampling(1.0, 0, 1.0, 0.0, repeat_penalty=1.7),
    "repeat, reversed": Sampling(1.0, 0, 1.0, 0.0, repeat_penalty=0.5),
    "presence": Sampling(1.0, 0, 1.0, 0.0, presence_penalty=1.5),
    "short window": Sampling(1.0, 0, 1.0, 0.0, repeat_penalty=1.2, presence_penalty=0.5, penalty_window=2),
    "no window": Sampling(1.0, 0, 1.0, 0.0, repeat_penalty=1.2, presence_penalty=0.5, penalty_window=0),
    "penalties, greedy": Sampling(0.0, repeat_penalty=1.5, presence_penalty=1.0),
    "all": Sampling(0.8, 40, 0.95, 0.05, repeat_penalty=1.1, presence_penalty=0.2),
    "default": Sampling(),
}
"""temperature, top_k, top_p, min_p and the penalties: each stage alone, at its edges, and together."""
each_chain = pytest.mark.parametrize("sampling", CHAINS.values(), ids=CHAINS.keys())

HISTORY = [0, 3, 1, 3, 4, 0, 2]


def rows() -> list[Logits]:
    """Rows of 1 to 300 logits: random, with ties, half of them -inf, all the same, far from 0, and flat."""
    random = np.random.default_rng(0)
    found = []
    for n_vocab in (5, 8, 40, 300):
        row = random.normal(0.0, 2.0, n_vocab)
        holes = np.where(random.random(n_vocab) < 0.5, -np.inf, row)
        holes[n_vocab // 2] = 1.0
        found += [row, row, np.round(row), holes, np.zeros(n_vocab), row + 1e4, row - 1e5, row * 1e-3]
        random.shuffle(found[-1])
    return [row.astype(np.float32) for row in found]


def as_dict(dist: Dist) -> dict[int, float]:
    return dict(zip(dist.ids.tolist(), dist.probs.tolist(), strict=True))


# The law of one token.


@each_chain
@pytest.mark.parametrize("history", [[], HISTORY], ids=["first", "later"])
def test_law_is_the_chains(sampling: Sampling, history: list[int]) -> None:
    sampler = Sampler(sampling)
    for row in rows():
        before = row.copy()
        dist = sampler.dist(row, history)
        assert as_dict(dist) == pytest.approx(chain(row, history, sampling), rel=1e-9, abs=1e-300)
        assert dist.ids.dtype == np.int64
        assert dist.probs.dtype == np.float64
        assert (np.diff(dist.ids) > 0).all()
        assert (dist.probs > 0).all()
        assert dist.probs.sum() == pytest.approx(1.0, abs=1e-12)
        assert row.tobytes() == before.tobytes()


@each_chain
def test_choice_is_the_law_with_the_positions_noise(sampling: Sampling) -> None:
    """What `pick` says and what a draft model's `draw` says are one: coupling rests on it."""
    sampler = Sampler(sampling)
    for row in rows():
        dist = sampler.dist(row, HISTORY)
        for position in range(20):
            noise = gumbel(sampling.seed, position, dist.ids)
            expected = dist.ids[np.argmax(np.log(dist.probs) + noise)]
            assert sampler.draw(dist, position) == expected
            assert sampler.pick(row, HISTORY, position) == expected


@pytest.mark.parametrize("n_vocab", [1, 2, 3])
@each_chain
def test_tiny_vocabulary(sampling: Sampling, n_vocab: int) -> None:
    row, sampler = np.arange(n_vocab, dtype=np.float32), Sampler(sampling)
    assert as_dict(sampler.dist(row, [0])) == pytest.approx(chain(row, [0], sampling))
    assert sampler.pick(row, [0], 0) in range(n_vocab)


@each_chain
def test_large_vocabulary(sampling: Sampling) -> None:
    """12,000 logits, of which many tie: the selection that reads the row in slices."""
    random = np.random.default_rng(1)
    row = random.normal(0.0, 2.0, 12_000)
    for case in (row.astype(np.float32), np.round(row, 1).astype(np.float32)):
        history = random.integers(0, 12_000, 100).tolist()
        got, want = as_dict(Sampler(sampling).dist(case, history)), chain(case, history, sampling)
        assert got.keys() == want.keys()
        assert list(got.values()) == pytest.approx([want[token] for token in got], rel=1e-9)


def test_top_p_keeps_the_token_that_reaches_the_mass_and_ties_by_lower_id() -> None:
    row = np.zeros(4, np.float32)
    for top_p, kept in ((0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.999, 4), (1.0, 4)):
        dist = Sampler(Sampling(1.0, 0, top_p, 0.0)).dist(row, [])
        assert dist.ids.tolist() == list(range(kept))


def test_top_p_looks_at_the_mass_that_top_k_left_and_not_at_the_temperature() -> None:
    row = np.log(np.array([8, 4, 2, 1, 1])).astype(np.float32)
    assert Sampler(Sampling(1.0, 0, 0.6, 0.0)).dist(row, []).ids.tolist() == [0, 1]
    assert Sampler(Sampling(1.0, 2, 0.6, 0.0)).dist(row, []).ids.tolist() == [0]
    assert Sampler(Sampling(5.0, 0, 0.6, 0.0)).dist(row, []).ids.tolist() == [0, 1]


def test_min_p_does_not_change_what_top_p_counts() -> None:
    """Min-p alone leaves ids 0 to 3; they hold half of the mass, of which top-p wants 42 % of all."""
    row = np.log(np.array([4, 3, 2, 1] + [0.1] * 100)).astype(np.float32)
    for top_k in (0, 104, 200):
        assert Sampler(Sampling(1.0, top_k, 0.42, 0.2)).dist(row, []).ids.tolist() == [0, 1, 2]


def test_min_p_one_keeps_the_ties_of_the_best() -> None:
    row = np.array([1, 3, 3, 2.9999], np.float32)
    assert Sampler(Sampling(1.0, 0, 1.0, 1.0)).dist(row, []).ids.tolist() == [1, 2]


def test_penalties_count_a_token_once_and_only_in_the_window() -> None:
    row = np.array([2, 2, 2, -2], np.float32)
    sampling = Sampling(1.0, 0, 1.0, 0.0, repeat_penalty=2.0, presence_penalty=0.5, penalty_window=4)
    probs = Sampler(sampling).dist(row, [2, 0, 0, 0, 3]).probs
    assert np.log(probs / probs[1]) == pytest.approx([0.5 - 2, 0, 0, -4.5 - 2], abs=1e-6)


def test_window_is_how_much_history_matters() -> None:
    assert Sampler(Sampling()).window == 0
    assert Sampler(Sampling(repeat_penalty=1.1)).window == 64
    assert Sampler(Sampling(presence_penalty=0.1, penalty_window=7)).window == 7
    row, history = np.linspace(0, 1, 9).astype(np.float32), [8, 7, 6, 5, 4, 3, 2, 1, 0]
    sampler = Sampler(Sampling(1.0, 0, 1.0, 0.0, presence_penalty=1.0, penalty_window=3))
    assert as_dict(sampler.dist(row, history)) == as_dict(sampler.dist(row, history[-3:]))
    assert as_dict(sampler.dist(row, history)) != as_dict(sampler.dist(row, history[-2:]))


def test_ties_go_to_the_lowest_id() -> None:
    row = np.array([0, 7, 7, 1, 7], np.float32)
    assert argmax(row) == 1
    assert Sampler(Sampling(0.0)).pick(row, [], 0) == 1
    assert Sampler(Sampling(1.0, 2, 1.0, 0.0)).dist(row, []).ids.tolist() == [1, 2]


# Bad rows.


def with_bad(value: float, *places: int) -> Logits:
    row = np.random.default_rng(2).normal(0.0, 2.0, 500).astype(np.float32)
    row[list(places)] = value
    return row


BAD_ROWS = {
    "nan first": with_bad(np.nan, 0),
    "nan last": with_bad(np.nan, 499),
    "nan for a seen token": with_bad(np.nan, 3),
    "many nan": with_bad(np.nan, *range(100, 400)),
    "all nan": np.full(500, np.nan, np.float32),
    "inf": with_bad(np.inf, 77),
    "inf for a seen token": with_bad(np.inf, 3),
    "all -inf": np.full(500, -np.inf, np.float32),
}


@each_chain
@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_bad_logits_are_refused(sampling: Sampling, row: Logits) -> None:
    sampler = Sampler(sampling)
    for history in ([], HISTORY):
        with pytest.raises(BadLogits):
            sampler.pick(row, history, 0)
        with pytest.raises(BadLogits):
            sampler.dist(row, history)


# The largest logits.


@given(
    st.integers(1, 700),
    st.integers(1, 12),
    st.sampled_from([0.3, 3.0, 30.0]),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_top_is_a_stable_sort(length: int, k: int, spread: float, holes: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    row = np.round(random.normal(0.0, spread, length)).astype(np.float32)  # -0.0 too: equal to 0.0
    row[random.random(length) < holes] = -np.inf
    row[random.integers(length)] = 0.0  # no logit at all is refused
    assert top(row, k)[0].tolist() == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize("k", [1, 40, 97, 98, 1000, 50_021])
def test_top_of_a_large_row_is_a_stable_sort(k: int) -> None:
    """50,021 is no multiple of 256; 97 is the largest k of the sliced path."""
    random = np.random.default_rng(3)
    row = random.normal(0.0, 2.0, 50_021).astype(np.float32)
    last_best = row.copy()
    last_best[-5:] = 100.0
    sparse = np.full_like(row, -np.inf)
    sparse[random.choice(50_021, 30, replace=False)] = 1.0
    for case in (row, np.round(row), last_best, sparse, np.sort(row), np.sort(row)[::-1], np.zeros_like(row)):
        assert top(case, k)[0].tolist() == np.argsort(-case, kind="stable")[:k].tolist()


# The noise.


def uniform(noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the Gumbel noise was made from."""
    return np.exp(-np.exp(-noise))


IDS = np.arange(20_000)
STREAMS: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "ids": lambda i: gumbel(1, 2, i * len(IDS) + IDS),
    "positions": lambda i: np.concatenate([gumbel(1, p, np.array([i])) for p in range(4000)]),
    "seeds": lambda i: np.concatenate([gumbel(s, 7, np.array([i])) for s in range(4000)]),
}
"""Numbers that follow one another along one argument; `i` gives another stretch of them."""


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_noise_is_uniform(stream: Callable[[int], NDArray[np.float64]]) -> None:
    """Kolmogorov and Smirnov: 1.95 / sqrt(n) is passed once in a thousand."""
    for i in range(3):
        values = np.sort(uniform(stream(i)))
        n = len(values)
        assert np.abs(values - (np.arange(n) + 0.5) / n).max() < 1.95 / math.sqrt(n)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("lag", [1, 2, 8, 64])
def test_noise_does_not_follow_from_its_neighbours(
    stream: Callable[[int], NDArray[np.float64]], lag: int
) -> None:
    values = uniform(stream(0))
    assert abs(correlation(values[lag:], values[:-lag])) < 4 / math.sqrt(len(values))


@pytest.mark.parametrize("other", [(1, 0), (0, 1), (1, -1), (2**32, 0), (0, 2**32), (0, 1000)])
@pytest.mark.parametrize("place", [(0, 0), (5, 100), (2**63 - 1, 2**20), (-1, 3)])
def test_noise_of_another_seed_or_position_is_independent(
    place: tuple[int, int], other: tuple[int, int]
) -> None:
    """(seed, position) + (change of seed, change of position), over all ids."""
    one, two = gumbel(*place, IDS), gumbel(place[0] + other[0], place[1] + other[1], IDS)
    assert not np.intersect1d(one, two).size  # no stretch of one is in the other, shifted
    assert abs(correlation(uniform(one), uniform(two))) < 4 / math.sqrt(len(IDS))


def correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 2**200 + 7])
def test_noise_is_a_finite_function_of_its_arguments(seed: int) -> None:
    for position in (0, 1, 2**31, 2**40):
        noise = gumbel(seed, position, IDS)
        assert np.isfinite(noise).all()
        some = np.array([19_999, 3, 500])  # neither the order nor the other ids matter
        assert gumbel(seed, position, some).tolist() == noise[some].tolist()


def test_noise_stays_what_it_was() -> None:
    """A seed keeps its text from one version to the next."""
    ids = np.array([0, 1, 151_935])
    first, later = gumbel(0, 0, ids), gumbel(2**63 - 1, 4096, ids)
    assert first == pytest.approx([1.0530590592834106, -0.6807578025137784, -0.19557984770366132], rel=1e-12)
    assert later == pytest.approx([-0.23160170097449007, -0.3379539671667551, -1.1083770024693618], rel=1e-12)


# Chance. Expected counts under 8 are merged into one cell.


def chi_square_p(counts: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> float:
    """The chance of counts at least as far from `law` as `counts` (Pearson; Wilson and Hilferty 1931)."""
    assert counts.keys() <= law.keys()
    n = sum(counts.values())
    cells = [(counts.get(key, 0), n * chance) for key, chance in law.items() if n * chance >= 8]
    rest = n - sum(want for _, want in cells)
    if rest > 1:
        cells.append((n - sum(got for got, _ in cells), rest))
    distance = sum((got - want) ** 2 / want for got, want in cells)
    k = len(cells) - 1
    z = ((distance / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return math.erfc(z / math.sqrt(2)) / 2


def test_chi_square() -> None:
    """Against the table: 99.9 % point of 9 degrees is 27.88, of 255 it is 330.5."""
    for degrees, point in ((9, 27.877), (255, 330.52)):
        law = dict.fromkeys(range(degrees + 1), 1 / (degrees + 1))
        n = 8000 * (degrees + 1)
        shift = round(math.sqrt(point * 8000 / 2))
        counts = dict.fromkeys(law, 8000) | {0: 8000 + shift, 1: 8000 - shift}
        assert sum(counts.values()) == n
        assert chi_square_p(counts, law) == pytest.approx(1e-3, rel=0.1)


LAW = Dist(np.array([2, 3, 5, 11]), np.array([0.5, 0.2, 0.29, 0.01]))


def test_positions_draw_from_the_law() -> None:
    sampler = Sampler(Sampling(seed=9))
    counts = Counter(sampler.draw(LAW, position) for position in range(20_000))
    assert chi_square_p(counts, as_dict(LAW)) > 1e-4


def test_dice_draw_from_the_law_and_flip_fairly() -> None:
    dice = RandomDice(4)
    drawn = [dice.draw(LAW) for _ in range(20_000)]
    assert chi_square_p(Counter(drawn), as_dict(LAW)) > 1e-4
    pairs = {(a, b): p * q for a, p in as_dict(LAW).items() for b, q in as_dict(LAW).items()}
    assert chi_square_p(Counter(zip(drawn[::2], drawn[1::2], strict=True)), pairs) > 1e-4
    flips = Counter(dice.flip(0.3) for _ in range(20_000))
    assert chi_square_p(flips, {True: 0.3, False: 0.7}) > 1e-4
    assert all(dice.flip(1.0) and not dice.flip(0.0) for _ in range(100))


def test_dice_repeat_with_their_seed() -> None:
    rolls = [[(dice.flip(0.5), dice.draw(LAW)) for _ in range(64)] for dice in map(RandomDice, (1, 1, 2))]
    assert rolls[0] == rolls[1] != rolls[2]


TEXTS = {
    "temperature 1": OFF,
    "top-k, top-p, min-p, penalties": Sampling(
        1.0, 3, 0.9, 0.05, repeat_penalty=1.3, presence_penalty=0.3, penalty_window=3
    ),
}
PROMPT = [0, 1, 2]


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_texts_follow_the_targets_law(sampling: Sampling, mode: str, count: int) -> None:
    """Loop, draft model, sampler, noise and dice together: four tokens for each of `count` seeds."""
    model = TableModel(seed=3, n_vocab=4, spread=1.0)
    draft = TableModel(seed=4, n_vocab=4, spread=0.7, near=model)
    rejection, found = RandomDice(0), Counter[tuple[int, ...]]()
    for seed in range(count):
        sampler = Sampler(replace(sampling, seed=seed))
        dice = rejection if mode == "rejection" else None
        drafter = ModelDrafter("draft", draft, sampler, 4, model.is_end, dice)
        loop = Generator(model, sampler, model.is_end, Fixed([Source(drafter, 3)]), rejection)
        found[tuple(token for step in loop.generate(PROMPT, 4) for token in step.tokens)] += 1
    assert chi_square_p(found, joint_law(model, sampling, PROMPT, 4)) > 1e-4
