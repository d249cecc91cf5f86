"""The composition root: Settings and a file become a plan, a loaded target, its sources and a Generator.

The one place that joins `llama`, `models`, `drafters` and `engine`. Importing it imports llama_cpp.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.config import Settings
from localspec.engine.cost import LADDER
from localspec.engine.generate import Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.schedule import Scheduler
from localspec.exact import exact_settings
from localspec.guessers import Guessers, drafts_for, follower_of
from localspec.learned import Learned
from localspec.llama.grammar import Grammar
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel
from localspec.loading import SILENT, Hear, Machine, compare, load_options, make_plan, open_model, sampling_of
from localspec.models.facts import read_model
from localspec.models.plan import Plan
from localspec.policy import AUTO, draft_names, remember


@dataclass(frozen=True, slots=True)
class Loaded:
    """A generator that is ready to run, with the models behind it. Close it, or use it in a `with`.

    `settings`: as in force; with `exact` the cache type is the one that was proven.
    """

    settings: Settings
    plan: Plan
    target: LlamaModel
    generator: Generator
    cancel: CancelFlag
    guessers: Guessers
    _stack: ExitStack

    @property
    def seed(self) -> int:
        """In force for the next answer."""
        return self.generator.sampler.sampling.seed

    def reseed(self, seed: int) -> None:
        """Another seed from the next answer on."""
        sampler, dice = self.generator.sampler, self.generator.dice
        sampler.sampling = replace(sampler.sampling, seed=seed)
        if isinstance(dice, RandomDice):
            dice.reseed(seed)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_target(
    settings: Settings,
    path: Path,
    draft: Path | None,
    *,
    cancel: CancelFlag,
    hear: Hear = SILENT,
    rewrites: bool = False,
    grammar: str | None = None,
) -> Loaded:
    """Plan, then load the model at `path` and what may guess for it. `draft`: the file of a draft model.

    `rewrites`: files are to be rewritten, so that a source that follows them may guess too. `grammar`: what
    answers must look like, as `llama.grammar.read_grammar` gives it.

    Raises NoFit when memory is short whatever is given up, and what a bad file or option deserves.
    """
    names = draft_names(settings.draft)
    facts = read_model(path)
    machine = Machine.here()
    drafts = drafts_for(settings, names, path, draft, facts, machine, cancel, hear)
    learned = Learned.of(facts.fingerprint)
    widths: Sequence[int] = LADDER
    if settings.exact:
        settings, widths = exact_settings(settings, path, facts, machine, learned, cancel, hear)
        names = names if len(widths) > 1 else []
    found = make_plan(facts, drafts, settings, machine)
    for why in found.why:
        hear.detail(why)
    with ExitStack() as failed:
        stack = ExitStack()
        failed.callback(stack.close)
        started = time.perf_counter()
        target = stack.enter_context(open_model(path, load_options(found, settings), cancel, hear))
        seconds_load = time.perf_counter() - started
        compare(found, target, hear)
        asked = next((draft for draft in drafts if draft.asked), None)
        if asked and not found.draft:
            hear.note(next((why for why in found.why if asked.name in why), f"{asked.name} is left out"))
        if names and not target.can_rewind:
            hear.note("this model's recurrent state cannot be taken back, so nothing is guessed for it")
            names = []
        follower = follower_of(target) if rewrites and AUTO in names else None
        guessers = Guessers(
            names, found, target, machine, learned, widths, cancel, hear, seconds_load, stack, follower
        )
        sampling = sampling_of(settings)
        constraint = Grammar.start(target.vocab, grammar) if grammar else None
        sampler, dice = Sampler(sampling, constraint), RandomDice(sampling.seed)
        policy = guessers.policy(settings, sampler, dice)
        if isinstance(policy, Scheduler):
            model = guessers.draft_model(settings, sampler, dice)
            stack.callback(remember, policy, guessers.conditions, model, settings, learned)
        generator = Generator(target, sampler, target.vocab.is_end, policy, dice)
        failed.pop_all()
        return Loaded(settings, found, target, generator, cancel, guessers, stack)
