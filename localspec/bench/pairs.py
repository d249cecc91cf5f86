"""How fast rewriting a file is: pairs of a file before and after a change, decoded again with the file known.

The reply is forced to be the changed file, so no model has to be able to make the change, and on a virtual
clock none computes anything. What is compared is the scheduler with the sources `edit` and `ngram`, with
`ngram` alone, plain decoding, and the best that was possible with both.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from localspec.bench.compare import Optimum
from localspec.bench.decode import Prices
from localspec.bench.replay import Forced, PricedTarget, VirtualClock
from localspec.bench.report import ALL
from localspec.chat.prompt import ChatTemplate, Tokenizer
from localspec.drafters import EditDrafter, NgramDrafter
from localspec.edit.request import Request, messages, unchanged_reply
from localspec.engine import oracle
from localspec.engine.cost import PassCosts
from localspec.engine.generate import MOST_GUESSES, WIDEST_PASS, Fixed, Generator, common_prefix
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Free
from localspec.engine.types import Drafter, Model, Step
from localspec.errors import UsageError, reason

EDIT, NGRAM = "edit", "ngram"
WALL = "wall"
BOTH, ALONE = (EDIT, NGRAM), (NGRAM,)
BYTES_FILE, BYTES_TEXT = 1 << 26, 1 << 18
MOST_PAIRS = 10_000
_CHARACTERS_NAME = 64
_HINT = 'each line is an object like {"name": "...", "instruction": "...", "before": "...", "after": "..."}'
_DATA = Path(__file__).parent / "data" / "pairs.jsonl"


@dataclass(frozen=True, slots=True)
class Pair:
    """A file before and after what `instruction` asks for. `origin`: where it is from, "" if it is ours."""

    name: str
    instruction: str
    before: str
    after: str
    origin: str = ""


class Vocabulary(Tokenizer, Protocol):
    """The part of `llama.vocab.Vocab` that pairs need."""

    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Case:
    """A pair as tokens. `text`: the `n_prompt` tokens of the prompt and the forced reply; `original`: a reply
    that changes nothing."""

    pair: Pair
    n_prompt: int
    text: tuple[int, ...]
    original: tuple[int, ...]
    vocab: Vocabulary

    @property
    def emitted(self) -> tuple[int, ...]:
        return self.text[self.n_prompt :]

    def drafter(self, name: str) -> Drafter:
        """The source `name`, fresh."""
        if name == NGRAM:
            return NgramDrafter()
        drafter = EditDrafter(self.vocab.piece, lambda text: self.vocab.tokenize(text, special=False))
        drafter.follow_file(self.original, self.n_prompt)
        return drafter


@dataclass(frozen=True, slots=True)
class Row:
    """A pair under one cost table, or all of them pooled. `tokens`: emitted; `edit`, `ngram`, `oracle`: speed
    over plain decoding with both sources, with the n-gram index alone, and at best."""

    name: str
    curve: str
    tokens: int
    edit: float
    ngram: float
    oracle: float

    @property
    def ratio(self) -> float:
        """How much the source `edit` adds to the n-gram index."""
        return self.edit / self.ngram

    @property
    def share(self) -> float:
        """Of the oracle's speed."""
        return self.edit / self.oracle

    @property
    def gain_share(self) -> float:
        """Of what the oracle gains over plain decoding."""
        return (self.edit - 1) / (self.oracle - 1) if self.oracle > 1 else 1.0


def built_in() -> list[Pair]:
    """The pairs that come with the program."""
    return read_pairs(_DATA)


def read_pairs(path: str | Path) -> list[Pair]:
    """Pairs of a file of JSON lines with name, instruction, before and after. Other keys are ignored, empty
    lines too. Raises UsageError with file and line number."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(BYTES_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(f"cannot read {path}: {reason(error)}", "give a file of JSON lines") from error
    if len(raw) > BYTES_FILE:
        raise UsageError(f"{path} has more than {BYTES_FILE >> 20} MiB", "give a smaller file")
    found: dict[str, Pair] = {}
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            pair = _pair(json.loads(line.decode("utf-8-sig")))
            if pair.name in found:
                raise ValueError(f"has the name {pair.name!r} of another one")
            if len(found) == MOST_PAIRS:
                raise ValueError(f"is one too many: at most {MOST_PAIRS} pairs are read")
        except (ValueError, RecursionError) as error:
            what = "is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else error
            raise UsageError(f"{path}, line {number} {what}", _HINT) from error
        found[pair.name] = pair
    if not found:
        raise UsageError(f"{path} holds no pair", _HINT)
    return list(found.values())


def _pair(item: Any) -> Pair:
    """Raises ValueError that says what is wrong with a line."""
    if not isinstance(item, dict):
        raise ValueError("is not an object")
    pair = Pair(*(_text(item, key) for key in ("name", "instruction", "before", "after")))
    if len(pair.name) > _CHARACTERS_NAME or not pair.name.isprintable():
        raise ValueError(f'has a "name" of more than {_CHARACTERS_NAME} printable characters')
    origin = item.get("origin", "")
    return Pair(
        pair.name, pair.instruction, pair.before, pair.after, origin if isinstance(origin, str) else ""
    )


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'has no text "{key}"')
    if len(value) > BYTES_TEXT:
        raise ValueError(f'has a "{key}" of more than {BYTES_TEXT} characters')
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f'has a "{key}" with a NUL or half a surrogate pair in it')
    return value


def case_of(pair: Pair, template: ChatTemplate, vocab: Vocabulary) -> Case:
    """The pair as `localspec edit` asks for it, and the whole file in a fence as the answer."""
    prompt = template.encode(messages(Request(pair.instruction, pair.name, pair.before, "whole")))
    reply, original = (
        vocab.tokenize(unchanged_reply(text), special=False) for text in (pair.after, pair.before)
    )
    return Case(pair, len(prompt), (*prompt, *reply), tuple(original), vocab)


def measure(cases: Sequence[Case], curves: Mapping[str, Prices]) -> list[Row]:
    """A row a pair and curve on virtual clocks, and behind those of a curve one of all pairs, named "all"."""
    reaches = [_reaches(case) for case in cases]
    rows: list[Row] = []
    for curve, prices in curves.items():
        times = []
        for case, right in zip(cases, reaches, strict=True):
            n = len(case.emitted)
            best = Optimum(right, prices, n).after(0)
            took = [seconds(replay(case, names, prices)) for names in (BOTH, ALONE)]
            times.append((oracle.plain(n, prices.curve), *took, best))
        rows += _rows(curve, cases, times)
    return rows


def measure_on_the_wall(
    cases: Sequence[Case], target: Model, known: Mapping[int, float], repeats: int = 2
) -> list[Row]:
    """The same with passes of `target`, of which `known` tells the seconds by width; the curve is "wall".

    Each way of decoding takes its turns forwards and backwards. The oracle goes by `known`. Cases that do not
    fit into the context are left out.
    """
    fitting = [case for case in cases if len(case.text) + WIDEST_PASS <= target.n_ctx]
    prices, times = Prices.of(known, 0.0), []
    for case in fitting:
        took: dict[Sequence[str], float] = {(): 0.0, BOTH: 0.0, ALONE: 0.0}
        for repeat in range(repeats):
            for names in took if repeat % 2 == 0 else reversed(took):
                took[names] += seconds(decode(case, names, target, known, time.perf_counter)) / repeats
        best = Optimum(_reaches(case), prices, len(case.emitted)).after(0) * known[1]
        times.append((took[()], took[BOTH], took[ALONE], best))
    return _rows(WALL, fitting, times)


def _reaches(case: Case) -> dict[str, list[int]]:
    return {name: reach(case, name) for name in BOTH}


def _rows(curve: str, cases: Sequence[Case], times: Sequence[Sequence[float]]) -> list[Row]:
    """A row a case and one of all; times: plainly, with both sources, with one, at best."""
    if not cases:
        return []
    sizes = [len(case.emitted) for case in cases]
    rows = [_row(case.pair.name, curve, n, t) for case, n, t in zip(cases, sizes, times, strict=True)]
    pooled = [math.fsum(column) for column in zip(*times, strict=True)]
    return [*rows, _row(ALL, curve, sum(sizes), pooled)]


def _row(name: str, curve: str, tokens: int, times: Sequence[float]) -> Row:
    plain, edit, ngram, best = times
    return Row(name, curve, tokens, plain / edit, plain / ngram, plain / best)


def seconds(steps: Sequence[Step]) -> float:
    return math.fsum(step.seconds for step in steps)


def reach(case: Case, name: str) -> list[int]:
    """How many guesses of a source in a row are right at each emitted token."""
    drafter, text = case.drafter(name), case.text
    drafter.begin(text[: case.n_prompt])
    return [
        common_prefix(
            drafter.propose(text[:i], MOST_GUESSES, lambda _: True).tokens, text[i : i + MOST_GUESSES]
        )
        for i in range(case.n_prompt, len(text))
    ]


def replay(case: Case, sources: Sequence[str], prices: Prices) -> list[Step]:
    """Decode a pair on a virtual clock."""
    clock = VirtualClock()
    n_ctx = len(case.text) + WIDEST_PASS
    target = PricedTarget(clock, prices.curve, n_ctx, tokens=list(case.text[: case.n_prompt - 1]))
    return decode(case, sources, target, prices.curve, clock)


def decode(
    case: Case,
    sources: Sequence[str],
    target: Model,
    known: Mapping[int, float],
    clock: Callable[[], float],
) -> list[Step]:
    """Decode a pair with `target`, of whose passes `known` tells the seconds by width, on `clock`: by the
    scheduler, or plainly without sources."""
    free = [Free(case.drafter(name)) for name in sources]
    policy = Scheduler(PassCosts(known, widths=tuple(known)), free, (), clock) if free else Fixed()
    generator = Generator(target, Forced(case.text), case.vocab.is_end, policy, clock=clock)
    return list(generator.generate(case.text[: case.n_prompt], len(case.emitted)))
