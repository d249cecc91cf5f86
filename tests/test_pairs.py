"""The vocabulary gate: a draft may guess only if its ids mean what the target's mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny

from localspec.app import open_target
from localspec.config import Settings
from localspec.engine.generate import Fixed
from localspec.errors import ExitStatus, VocabularyError
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.pairs import check_vocabulary


@dataclass(frozen=True)
class Facts:
    texts: Sequence[str]
    kind: int = 2
    bos: int = 1
    eos: int = 2
    adds_bos: bool = False
    adds_eos: bool = False

    @property
    def n_tokens(self) -> int:
        return len(self.texts)

    def text(self, token: int) -> str:
        return self.texts[token]


TEXTS = [f"t{i}" for i in range(300)]
TARGET = Facts(TEXTS)


def changed(*ids: int) -> Facts:
    return Facts([f"other {text}" if i in ids else text for i, text in enumerate(TEXTS)])


def refusal(target: Facts, draft: Facts) -> str:
    with pytest.raises(VocabularyError) as error:
        check_vocabulary(target, draft)
    assert error.value.exit_status == ExitStatus.USAGE
    assert "--draft ngram" in error.value.hint
    return error.value.message


def test_the_same_vocabulary() -> None:
    check_vocabulary(TARGET, Facts(list(TEXTS)))


@pytest.mark.parametrize(
    ("fact", "value", "says"),
    [
        ("kind", 1, "kind is 2 in the target, 1 in the draft"),
        ("bos", 0, "bos is 1 in the target, 0 in the draft"),
        ("eos", -1, "eos is 2 in the target, -1 in the draft"),
        ("adds_bos", True, "adds_bos is False in the target, True in the draft"),
        ("adds_eos", True, "adds_eos is False in the target, True in the draft"),
    ],
)
def test_facts_that_must_be_equal(fact: str, value: object, says: str) -> None:
    assert refusal(TARGET, replace(TARGET, **{fact: value})).endswith(f"vocabulary: {says}")  # type: ignore[arg-type]


def test_sizes_may_differ_by_128_either_way() -> None:
    for more in (0, 1, 128):
        longer = Facts([*TEXTS, *(f"pad{i}" for i in range(more))])
        check_vocabulary(TARGET, longer)
        check_vocabulary(longer, TARGET)
    longer = Facts([*TEXTS, *(f"pad{i}" for i in range(129))])
    assert "300 tokens against 429" in refusal(TARGET, longer)
    assert "429 tokens against 300" in refusal(longer, TARGET)


def test_the_first_five_texts_may_differ() -> None:
    check_vocabulary(TARGET, changed(0, 1, 2, 3, 4))
    assert refusal(TARGET, changed(5)).endswith("vocabulary: id 5 is 't5' against 'other t5'")
    assert refusal(TARGET, changed(299)).endswith("vocabulary: id 299 is 't299' against 'other t299'")


def test_the_first_three_different_ids_are_shown() -> None:
    message = refusal(TARGET, changed(2, 7, 70, 200, 201))
    assert "id 7 is 't7' against 'other t7'; id 70 is" in message
    assert "id 200" in message
    assert "id 2 " not in message
    assert "id 201" not in message


# Real files, through the program's own way of opening them


def opened(target: Path, draft: Path) -> list[str]:
    """Names of the sources that a target gets with `draft` given."""
    settings = Settings(draft=str(draft), draft_len=4, ctx=256, threads=1, seed=0)
    with open_target(settings, target, draft, cancel=CancelFlag()) as loaded:
        assert isinstance(loaded.generator.policy, Fixed)
        return [source.drafter.name for source in loaded.generator.policy.sources]


def refused(target: Path, draft: Path) -> str:
    with pytest.raises(VocabularyError) as error:
        opened(target, draft)
    assert error.value.exit_status == ExitStatus.USAGE
    return error.value.message


def test_a_draft_of_the_same_vocabulary(tiny_path: Path, tmp_path: Path) -> None:
    assert opened(tiny_path, tiny.write_llama(tmp_path / "m.gguf", n_layer=1, seed=3)) == ["draft"]


@pytest.mark.parametrize("way", [lambda a, b: (a, b), lambda a, b: (b, a)])
def test_exchanged_letters_are_shown(
    way: Callable[[Path, Path], tuple[Path, Path]], tiny_path: Path, tmp_path: Path
) -> None:
    a, e = (tiny.FIRST_BYTE + ord(letter) for letter in "ae")
    target, draft = way(tiny_path, tiny.write_other_vocab(tmp_path / "m.gguf"))
    message = refused(target, draft)
    first, second = ("a", "e") if target == tiny_path else ("e", "a")
    assert f"id {a} is '{first}' against '{second}'; id {e} is '{second}' against '{first}'" in message


def test_a_bigger_vocabulary_up_to_128(tiny_path: Path, tmp_path: Path) -> None:
    bigger = tiny.write_bigger_vocab(tmp_path / "bigger.gguf", extra=128)
    assert opened(tiny_path, bigger) == ["draft"]
    assert opened(bigger, tiny_path) == ["draft"]
    too_big = tiny.write_bigger_vocab(tmp_path / "too_big.gguf", extra=129)
    assert "320 tokens against 449" in refused(tiny_path, too_big)
    assert "449 tokens against 320" in refused(too_big, tiny_path)


def test_a_stranger(real_model: Path, tiny_path: Path) -> None:
    message = refused(real_model, tiny_path)
    assert "49152 tokens against 320" in message
    assert "bos is 1 in the target, 0 in the draft" in message
    assert "id 5 is '<file_sep>' against 'Ă'" in message


def test_a_quantised_copy_of_the_real_model(real_model: Path, real_copy: Callable[[str], Path]) -> None:
    with (
        LlamaModel(real_model, LoadOptions(n_ctx=256)) as target,
        LlamaModel(real_copy("Q4_0"), LoadOptions(n_ctx=256)) as draft,
    ):
        check_vocabulary(target.vocab, draft.vocab)


def test_another_vocabulary_is_refused_before_anything_is_loaded(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr(LlamaModel, "__init__", lambda _self, path, *_a, **_k: loaded.append(path))
    refused(tiny_path, tiny.write_other_vocab(tmp_path / "m.gguf"))
    assert loaded == []
