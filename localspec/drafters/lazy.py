"""A draft model that is loaded only when the scheduler expects it to repay that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.drafters.model import ModelDrafter
from localspec.engine.generate import common_prefix
from localspec.engine.types import Guess, Proposal, Suggest, nothing


@dataclass(slots=True)
class LazyDrafter:
    """Stands for the ModelDrafter that `load` makes. `seconds_expected`: what loading will take, a guess.

    `kept`: the tokens that its cache will hold from an earlier session, and which it need not read.
    When `load` raises, that is told to `on_failure` once, and from then on there is nothing to guess.
    """

    name: str
    load: Callable[[], ModelDrafter]
    seconds_expected: float
    on_failure: Callable[[Exception], None] = lambda _: None
    kept: Callable[[], Sequence[int]] = tuple
    inner: ModelDrafter | None = field(default=None, init=False)
    failed: bool = field(default=False, init=False)
    _known: int = field(default=0, init=False)  # tokens of this turn's prompt that are kept

    @property
    def seconds_to_load(self) -> float:
        return 0.0 if self.inner or self.failed else self.seconds_expected

    def begin(self, context: Sequence[int]) -> None:
        if self.inner:
            self.inner.begin(context)
        else:
            self._known = common_prefix(self.kept(), context[:-1])

    def unseen(self, context: Sequence[int]) -> int:
        return self.inner.unseen(context) if self.inner else len(context) - self._known

    def open(self, context: Sequence[int]) -> None:
        if self.inner is None and not self.failed:
            try:
                self.inner = self.load()
            except Exception as error:
                self.failed = True
                self.on_failure(error)
        if self.inner:
            self.inner.open(context)

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        self.open(context)
        return self.inner.propose(context, limit, go_on) if self.inner else Proposal()

    def follow(
        self, context: Sequence[int], guessed: Sequence[int], suggest: Suggest = nothing
    ) -> Iterator[Guess]:
        self.open(context)
        return self.inner.follow(context, guessed, suggest) if self.inner else iter(())
