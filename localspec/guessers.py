"""What may guess for a loaded target, and the policy that lets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from localspec.config import Settings
from localspec.drafters import NAMED, ModelDrafter
from localspec.drafters.edit import EditDrafter
from localspec.engine.cost import LADDER
from localspec.engine.proven import ProvenOnly
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Policy
from localspec.errors import BadModelFile
from localspec.learned import Learned
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel
from localspec.loading import Hear, Machine, conditions_of, make_self_draft, open_draft
from localspec.models import catalog
from localspec.models.candidates import candidates
from localspec.models.facts import ModelFacts, read_model
from localspec.models.pairs import check_vocabulary, copy_acceptance, draft_acceptance
from localspec.models.plan import Draft, Kind, Plan
from localspec.policy import AUTO, SELF, DraftModel, fixed, measure, scheduler


def drafts_for(
    settings: Settings,
    names: Sequence[str],
    path: Path,
    draft: Path | None,
    facts: ModelFacts,
    machine: Machine,
    cancel: CancelFlag,
    hear: Hear,
) -> list[Draft]:
    """What may guess besides the text: the draft the user named, or with `auto` all that is here."""
    if AUTO in names:
        return candidates(path, facts, catalog.load()) if facts.rollback == "any" else []
    if SELF in names and facts.rollback == "any":
        draft = make_self_draft(path, facts, machine, settings, cancel=cancel, hear=hear)
    if draft is None:
        return []
    kind: Kind = "self" if SELF in names else "model"
    return [checked(Draft(kind, draft.stem, read_model(draft), asked=True, path=draft), facts)]


def checked(draft: Draft, target: ModelFacts) -> Draft:
    """The draft the user named; refused if this version cannot let it guess, or its vocabulary differs."""
    if not draft.can_run:
        what = (
            f"the {draft.facts.head} head of another model" if draft.facts.head else "no model that can draft"
        )
        name = draft.path.name if draft.path else draft.name
        raise BadModelFile(
            f"{name} is {what}: a draft must be able to take back a wrong guess",
            "take an attention-only model as draft, or --draft ngram",
        )
    if target.vocabulary and draft.facts.vocabulary:
        check_vocabulary(target.vocabulary, draft.facts.vocabulary)
    return draft


def follower_of(target: LlamaModel) -> EditDrafter:
    """The source that follows a file being rewritten, for the texts of `target`."""
    vocab = target.vocab
    return EditDrafter(vocab.piece, lambda text: vocab.tokenize(text, special=False))


@dataclass(slots=True)
class Guessers:
    """What may guess for a loaded target, and the policies that let it.

    `names`: the sources, none if nothing may guess; `widths`: those that passes may have. `follower`: where a
    file is rewritten, the source that follows it. The draft model is loaded when it is first asked for, and
    once; `on_draft` hears of it, and may give it a cache that holds `draft_tokens`.
    """

    names: Sequence[str]
    plan: Plan
    target: LlamaModel
    machine: Machine
    learned: Learned
    widths: Sequence[int]
    cancel: CancelFlag
    hear: Hear
    seconds_load: float
    _stack: ExitStack
    follower: EditDrafter | None = None
    on_draft: Callable[[LlamaModel], None] = field(default=lambda _: None, init=False)
    draft_tokens: Sequence[int] = field(default=(), init=False)
    _draft: LlamaModel | None = field(default=None, init=False)

    @property
    def loaded_draft(self) -> LlamaModel | None:
        """The draft model once it is loaded."""
        return self._draft

    @property
    def conditions(self) -> str:
        return conditions_of(self.target.options, self.machine)

    @property
    def share_cached(self) -> float:
        """What a token in the cache adds to a plain pass: the bytes read for it, against the weights'.

        On the processor each row of a pass reads them again. A GPU reads them once for all: next to nothing.
        """
        if self.plan.layers_gpu:
            return 0.0
        cache = sum(need.cache for need in self.plan.needs.values())
        return cache / self.plan.n_ctx / max(1, self.plan.target.weights.active)

    @property
    def free(self) -> list[str]:
        """The sources that need no model."""
        return list(NAMED) if AUTO in self.names else [name for name in self.names if name in NAMED]

    @property
    def sources(self) -> list[str]:
        """What may guess, by name."""
        follower = [self.follower.name] if self.follower else []
        return [*follower, *self.free, *(["draft"] if self.draft else [])]

    @property
    def draft(self) -> Draft | None:
        """The planned draft model, if it may guess."""
        draft = self.plan.draft
        return draft if self.names and draft and draft.path and self.target.can_rewind else None

    def policy(self, settings: Settings, sampler: Sampler, dice: RandomDice) -> Policy:
        """The scheduler, or fixed lengths if the user pinned one."""
        model = self.draft_model(settings, sampler, dice)
        names = self.free if AUTO in self.names else self.names
        if not names or settings.draft_len:
            return self.within(fixed(names, model, settings.draft_len or 1))
        self.hear.progress("measuring what passes cost here ...")
        measured = measure(self.target, self.conditions, self.learned, self.widths, self.share_cached)
        self.hear.progress("")
        if measured.fresh:
            known = measured.costs.known()
            dear = " ".join(f"{n}:{seconds / known[1]:.2f}" for n, seconds in known.items())
            self.hear.detail(f"measured passes in {measured.fresh:.1f} s, by tokens, against one: {dear}")

        def failed(error: Exception) -> None:
            self.hear.note(f"the draft model is left out: {error}")

        piece, others = self.target.vocab.piece, [self.follower] if self.follower else []
        return scheduler(settings, names, model, measured.costs, self.learned, piece, failed, others=others)

    def within(self, policy: Policy) -> Policy:
        """`policy`, kept to the proven widths if that is asked for."""
        return policy if self.widths is LADDER else ProvenOnly(policy, self.widths)

    def draft_model(self, settings: Settings, sampler: Sampler, dice: RandomDice) -> DraftModel | None:
        """The draft as the scheduler sees it, not yet loaded."""
        draft = self.draft
        if draft is None:
            return None
        target = self.plan.target
        share = draft.facts.weights.active / max(1, target.weights.active)
        size = draft.facts.n_parameters / max(1, target.n_parameters)
        right = (
            copy_acceptance(draft.facts.bits_per_weight, target.n_parameters, settings.temp)
            if draft.kind == "self"
            else draft_acceptance(size, settings.temp)
        )
        seconds = self.seconds_load * draft.facts.bytes_file / max(1, target.bytes_file)
        return DraftModel(
            draft.facts.fingerprint[:16],
            lambda: self.drafter(settings, sampler, dice),
            seconds,
            share,
            right,
            lambda: self.draft_tokens,
        )

    def drafter(self, settings: Settings, sampler: Sampler, dice: RandomDice) -> ModelDrafter:
        """The draft model as a source of guesses for `sampler`. Loads it; there must be a `draft`."""
        draft, target = self.draft, self.target
        assert draft, "nobody asks for a draft that is not there"
        assert draft.path
        if self._draft is None:
            opened = open_draft(draft.path, target, self.plan, settings, self.cancel, self.hear)
            self._draft = self._stack.enter_context(opened)
            self.on_draft(self._draft)
        drawn = settings.accept == "rejection" and sampler.sampling.temperature > 0
        return ModelDrafter(
            "draft", self._draft, sampler, target.n_vocab, target.vocab.is_end, dice if drawn else None
        )
