"""Held to a schema, text is still that of plain decoding whatever guesses, and it parses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from test_lossless import EAGER, QUANTISED, decode, scheduler
from virtual import Timed

from localspec.bench.replay import VirtualClock
from localspec.drafters import NAMED, ModelDrafter
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Sampling, Source
from localspec.llama.grammar import Grammar
from localspec.llama.model import LlamaModel
from localspec.llama.schema import gbnf_of


def a_list_of(item: Any, least: int = 1, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


WORD = {"type": "string", "minLength": 1, "maxLength": 8}
KINDS = {"enum": ["red", "green", "blue"]}
SCHEMAS: dict[str, Any] = {
    "flat": an_object(name=WORD, colour=KINDS, age={"type": "integer"}),
    "rows": a_list_of(an_object(name=WORD, colour=KINDS), 3, 3),
    "nested": an_object(where=an_object(x={"type": "number"}, y={"type": "number"}), ok={"type": "boolean"}),
    "strings": a_list_of(WORD, 2, 5),
    "any": an_object(value={"anyOf": [WORD, {"type": "null"}, a_list_of({"type": "boolean"})]}),
}
LENGTH = 160
"""Tokens: more than any answer to these schemas takes."""


def texts(
    target: LlamaModel, draft: LlamaModel, prompt: list[int], sampler: Sampler
) -> Iterator[tuple[str, list[int]]]:
    """What comes of it without guesses, and with every source under fixed lengths and under the scheduler."""
    is_end = target.vocab.is_end
    yield "none", decode(target, sampler, prompt, [], is_end, LENGTH)
    for name, make in NAMED.items():
        yield name, decode(target, sampler, prompt, [Source(make(), 7)], is_end, LENGTH)
    drafter = ModelDrafter("draft", draft, sampler, target.n_vocab, is_end)
    yield "draft", decode(target, sampler, prompt, [Source(drafter, 4)], is_end, LENGTH)
    clock = VirtualClock()
    policy = scheduler(EAGER, drafter, [], clock)
    timed = Timed(target, clock, EAGER)
    yield "scheduler", decode(timed, sampler, prompt, policy, is_end, LENGTH, clock)


def check(schema: Any, said: str) -> None:
    """The parts of the schema that Python can tell at once."""
    value = json.loads(said)
    if schema is SCHEMAS["flat"]:
        assert value["colour"] in KINDS["enum"]
        assert isinstance(value["age"], int)
        assert 1 <= len(value["name"]) <= 8
    elif schema is SCHEMAS["rows"]:
        assert len(value) == 3
        assert all(list(row) == ["name", "colour"] and row["colour"] in KINDS["enum"] for row in value)
    elif schema is SCHEMAS["nested"]:
        assert list(value) == ["where", "ok"]
        assert all(isinstance(value["where"][axis], (int, float)) for axis in "xy")
    elif schema is SCHEMAS["strings"]:
        assert 2 <= len(value) <= 5
        assert all(1 <= len(word) <= 8 for word in value)
    else:
        assert value["value"] is None or isinstance(value["value"], (str, list))


def run(target: LlamaModel, draft: LlamaModel, prompt: list[int], schema: Any, seeds: Sequence[int]) -> int:
    """How many texts were compared and found to parse: a greedy one, and one a seed, by each source."""
    runs = 0
    start = Grammar.start(target.vocab, gbnf_of(json.dumps(schema)))
    for temperature, seed in [(0.0, 0), *((0.8, seed) for seed in seeds)]:
        sampler = Sampler(Sampling(temperature=temperature, seed=seed), start)
        plain: list[int] = []
        for name, tokens in texts(target, draft, prompt, sampler):
            plain = plain or tokens
            assert tokens == plain, (name, sampler.sampling)
            assert target.vocab.is_end(tokens[-1])
            check(schema, b"".join(map(target.vocab.piece, tokens[:-1])).decode())
            runs += 1
    return runs


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    f32 = tiny.write_llama(folder / "f32.gguf", n_embd=64, noise=0.0)
    near = tiny.write_llama(folder / "near.gguf", n_embd=64, noise=0.1)
    return tiny.quantize(f32, folder / "q8.gguf", "Q8_0"), tiny.quantize(
        near, folder / "near-q8.gguf", "Q8_0"
    )


def test_tiny(tiny_pair: tuple[Path, Path]) -> None:
    target_path, draft_path = tiny_pair
    with LlamaModel(target_path, QUANTISED) as target, LlamaModel(draft_path, QUANTISED) as draft:
        prompt = target.vocab.tokenize("the cat and the dog and the cat and", special=False)
        assert sum(run(target, draft, prompt, schema, range(1)) for schema in SCHEMAS.values()) >= 40


def real_prompt(model: LlamaModel) -> list[int]:
    chat = "<|im_start|>user\nDescribe three pupils as JSON.<|im_end|>\n<|im_start|>assistant\n"
    return model.vocab.tokenize(chat, special=True)


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_real(real_copy: Callable[[str], Path], schema: Any) -> None:
    """40 of 40 for each of five schemas, token for token, each of them whole."""
    with (
        LlamaModel(real_copy("Q8_0"), QUANTISED) as target,
        LlamaModel(real_copy("Q4_0"), QUANTISED) as draft,
    ):
        assert run(target, draft, real_prompt(target), schema, range(9)) >= 40


def test_rejected_guesses_parse(tiny_pair: tuple[Path, Path]) -> None:
    """Rejection mode: text depends on the guesses, and parses all the same."""
    schema, accepted = SCHEMAS["rows"], 0
    with LlamaModel(tiny_pair[0], QUANTISED) as target, LlamaModel(tiny_pair[1], QUANTISED) as draft:
        prompt = target.vocab.tokenize("the cat and the dog", special=False)
        start, is_end = Grammar.start(target.vocab, gbnf_of(json.dumps(schema))), target.vocab.is_end
        for seed in range(5):
            sampler, dice = Sampler(Sampling(seed=seed), start), RandomDice(seed)
            drafter = ModelDrafter("draft", draft, sampler, target.n_vocab, is_end, dice)
            target.rewind(0)
            steps = [
                *Generator(target, sampler, is_end, Fixed([Source(drafter, 4)]), dice).generate(
                    prompt, LENGTH
                )
            ]
            accepted += sum(step.accepted for step in steps)
            tokens = [token for step in steps for token in step.tokens]
            check(schema, b"".join(map(target.vocab.piece, tokens[:-1])).decode())
    assert accepted > 50
