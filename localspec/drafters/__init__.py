"""Where guesses come from: one class a file, all behind the `Drafter` protocol of `engine.types`.

`NAMED` is the registry of sources that need nothing but the text. A draft model comes with a file, so
`app.py` makes its ModelDrafter. Without a pinned length each source has its own rule for when to stop.
"""

from __future__ import annotations

from collections.abc import Callable

from localspec.drafters.model import ModelDrafter
from localspec.drafters.ngram import NgramDrafter
from localspec.engine.types import Source

__all__ = ["NAMED", "ModelDrafter", "NgramDrafter", "model_source"]

NAMED: dict[str, Callable[[int | None], Source]] = {
    "ngram": lambda pinned: Source(NgramDrafter(fill_limit=pinned is not None), pinned or 31),
}
"""`--draft` name -> a function of the pinned draft length (None: the source decides) that makes it."""


def model_source(drafter: ModelDrafter, pinned: int | None) -> Source:
    """A draft model guesses 4 tokens a pass, fewer after one it gives less than 40 %."""
    return Source(drafter, pinned) if pinned else Source(drafter, 4, min_confidence=0.4)
