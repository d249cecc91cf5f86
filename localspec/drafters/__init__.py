"""Where guesses come from: one class a file, all behind the `Drafter` protocol of `engine.types`.

`NAMED` is the registry of sources that need nothing but the text. A draft model comes with a file, and an
EditDrafter with the text that is rewritten: who has these makes them.
"""

from __future__ import annotations

from collections.abc import Callable

from localspec.drafters.edit import EditDrafter
from localspec.drafters.lazy import LazyDrafter
from localspec.drafters.model import ModelDrafter
from localspec.drafters.ngram import NgramDrafter
from localspec.engine.types import Drafter

__all__ = ["NAMED", "EditDrafter", "LazyDrafter", "ModelDrafter", "NgramDrafter"]

NAMED: dict[str, Callable[[], Drafter]] = {"ngram": NgramDrafter}
"""`--draft` name -> what makes the source; their guesses cost no more than looking."""
