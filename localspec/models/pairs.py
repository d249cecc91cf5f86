"""Which draft suits which target: the vocabulary gate.

A draft may guess only if its ids mean what the target's mean. llama.cpp's own rule: same kind, BOS, EOS and
flags, sizes within 128, identical texts from id 5 on (the first few often differ in name only).
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

from localspec.errors import VocabularyError

SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5


class VocabularyFacts(Protocol):
    """What the gate looks at; `llama.vocab.Vocab` has it."""

    @property
    def n_tokens(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_eos(self) -> bool: ...
    def text(self, token: int) -> str: ...


def check_vocabulary(target: VocabularyFacts, draft: VocabularyFacts) -> None:
    """Raise VocabularyError, with the first differences, unless `draft` may guess for `target`."""
    differences = _differences(target, draft)
    if differences:
        raise VocabularyError(
            "the draft speaks another vocabulary: " + "; ".join(differences),
            "take a draft of the target's family, or --draft ngram",
        )


def _differences(target: VocabularyFacts, draft: VocabularyFacts) -> list[str]:
    facts = ("kind", "bos", "eos", "adds_bos", "adds_eos")
    different = [
        f"{fact} is {getattr(target, fact)} in the target, {getattr(draft, fact)} in the draft"
        for fact in facts
        if getattr(target, fact) != getattr(draft, fact)
    ]
    if abs(target.n_tokens - draft.n_tokens) > SIZE_DIFFERENCE:
        different.append(f"{target.n_tokens} tokens against {draft.n_tokens}")
    common = range(FIRST_COMPARED, min(target.n_tokens, draft.n_tokens))
    unequal = (i for i in common if target.text(i) != draft.text(i))
    different += [f"id {i} is {target.text(i)!r} against {draft.text(i)!r}" for i in islice(unequal, 3)]
    return different
